//! All contents of a device are named, and a device that cannot be read is not blank.

use std::{fs::File, os::unix::fs::FileExt};

use crate::{
    Probe, probe,
    testing::{Scratch, run},
};

const MIB: u64 = 1 << 20;

#[test]
fn a_hole_is_blank_and_a_missing_device_is_an_error() {
    let scratch = Scratch::new();
    for bytes in [0, 512, 100_000, MIB, 5 * MIB, 1 << 40] {
        assert_eq!(probe(&scratch.image("image", bytes)).unwrap(), Probe::Blank);
    }
    assert!(probe(&scratch.path().join("missing")).is_err());
    assert!(probe(&scratch.path()).is_err());
}

#[test]
fn older_ext_file_systems_and_swap_are_foreign() {
    for (program, arguments, name) in [
        ("mkfs.ext2", &["-q", "-F"][..], "ext2"),
        ("mkfs.ext3", &["-q", "-F"][..], "ext3"),
        ("mkswap", &["-q"][..], "swap"),
    ] {
        let scratch = Scratch::new();
        let image = scratch.image("image", 16 * MIB);
        let mut arguments = arguments.to_vec();
        arguments.push(image.to_str().unwrap());
        run(program, &arguments);
        assert_eq!(probe(&image).unwrap(), Probe::Foreign(name));
    }
}

#[test]
fn a_signature_where_its_owner_puts_it_has_its_owners_name() {
    let size = 16 * MIB;
    for (name, offset, bytes) in [
        ("LUKS", 0, &b"LUKS\xba\xbe\0\x02"[..]),
        ("LVM physical volume", 512, b"LABELONE"),
        ("GPT partition table", 512, b"EFI PART"),
        ("GPT partition table", size - 512, b"EFI PART"),
        ("squashfs", 0, b"hsqs"),
        ("exfat", 3, b"EXFAT   "),
        ("ntfs", 3, b"NTFS    "),
        ("vfat", 82, b"FAT32   "),
        ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
        ("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
        ("iso9660", 32_769, b"CD001"),
        ("md raid member", 4096, b"\xfc\x4e\x2b\xa9"),
        ("md raid member", size - 8192, b"\xfc\x4e\x2b\xa9"),
        ("md raid member", size - 65_536, b"\xfc\x4e\x2b\xa9"),
        ("zfs", 132 << 10, b"\x0c\xb1\xba\0\0\0\0\0"),
        ("unfinished xfs", 0, b"XFSB"),
        ("unfinished btrfs", 65_600, b"!BHRfS_M"),
    ] {
        let scratch = Scratch::new();
        let image = scratch.image("image", size);
        let file = File::options().write(true).open(&image).unwrap();
        file.write_all_at(bytes, offset).unwrap();
        assert_eq!(
            probe(&image).unwrap(),
            Probe::Foreign(name),
            "{name} at {offset}"
        );
    }
}

#[test]
fn a_partition_table_is_foreign() {
    let scratch = Scratch::new();
    let image = scratch.image("image", 16 * MIB);
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0x80, 0, 2, 0, 0x83], 446).unwrap();
    file.write_all_at(&[0x55, 0xaa], 510).unwrap();
    assert_eq!(
        probe(&image).unwrap(),
        Probe::Foreign("MBR partition table")
    );
}
