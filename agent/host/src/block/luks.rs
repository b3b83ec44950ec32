//! LUKS2 headers and the mappings that they describe, by the program cryptsetup.
//!
//! **Invariant:** a key is never an argument, an environment variable or a file of ours, and never in a message: it
//! reaches the program by its standard input.

use std::{
    fmt,
    fs::{self, File, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::DirBuilderExt,
    path::Path,
};

use zeroize::Zeroizing;

use crate::{
    Access, Error, Kind, Result,
    device_mapper::{DeviceMapper, Mapped},
    exec::{self, Program},
    fsync, holders, udev,
};

/// The program.
const PROGRAM: &str = "cryptsetup";
/// The directory of its locks on headers of devices (`LUKS2_LOCK_DIR`).
const LOCKS: &str = "/run/cryptsetup";
/// Status of cryptsetup when no key slot has the key (`-EPERM`, `translate_errno` of cryptsetup).
const WRONG_KEY: i32 = 2;
/// The first bytes of a header.
const MAGIC: &[u8] = b"LUKS\xba\xbe";
/// Keys are random: there is nothing to be gained by stretching them, which costs a second and a gigabyte by default.
/// 1000 iterations are the fewest that cryptsetup accepts.
const DERIVATION: [&str; 4] = ["--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000"];

/// A key that opens key slots. Its memory is erased when it is dropped, and it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct LuksKey(Zeroizing<Vec<u8>>);

impl LuksKey {
    /// The fewest bytes of a key: those of a cipher's key.
    pub const SHORTEST: usize = 32;
    /// The most bytes of a key; more is no key, but another file.
    pub const LONGEST: usize = 8 << 10;

    /// A key of these bytes.
    ///
    /// # Errors
    /// `Precondition` when there are too few or too many; the caller says whose they are.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        let key = Self(Zeroizing::new(bytes));
        let length = key.0.len();
        if !(Self::SHORTEST..=Self::LONGEST).contains(&length) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "the key has {length} bytes; a key has between {} and {} random bytes, as from `head -c 64 /dev/urandom`",
                    Self::SHORTEST,
                    Self::LONGEST
                ),
            ));
        }
        Ok(key)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for LuksKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// The result of trying a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// A key slot has it.
    Fits,
    /// No key slot has it.
    Wrong,
}

/// Checks that encrypted devices can be made and opened here, as far as that can be told without making one.
///
/// # Errors
/// `Precondition`, saying what to install.
pub fn check_program() -> Result<()> {
    if exec::find(PROGRAM).is_none() {
        return Err(Error::new(
            Kind::Precondition,
            "program cryptsetup is missing, which encrypted volumes need; install the package cryptsetup-bin (Debian, Ubuntu) or cryptsetup (others)",
        ));
    }
    Ok(())
}

/// Writes a header with one key slot. What the device had before is lost.
///
/// `data` is the offset of the data, in bytes.
pub async fn format(device: &Path, key: &LuksKey, data: u64) -> Result<()> {
    // The cipher does not depend on how the program was built; sectors are those that every device has.
    cryptsetup(["luksFormat", "--batch-mode", "--type", "luks2"])
        .args(DERIVATION)
        .args(["--cipher", "aes-xts-plain64", "--key-size", "512"])
        .args(["--sector-size", "512"])
        .arg("--offset")
        .arg(crate::Sectors::within(data).0.to_string())
        .arg("--key-file=-")
        .arg(device)
        .stdin(key.bytes())
        .run()
        .await
        .map(drop)
}

/// Opens a device under a name below `/dev/mapper`, if the key fits.
///
/// # Errors
/// `Precondition` when the kernel has no dm-crypt, or the device has no header.
pub async fn open(device: &Path, name: &str, key: &LuksKey, access: Access) -> Result<Fit> {
    // Blocks that a file system frees become free below, too. That shows which blocks are free, and no more.
    let mut program = cryptsetup(["open", "--type", "luks2", "--allow-discards"]);
    if access == Access::ReadOnly {
        program = program.arg("--readonly");
    }
    tried(program.arg("--key-file=-").arg(device).arg(name), key).await
}

/// Tries a key without opening the device.
pub async fn try_key(device: &Path, key: &LuksKey) -> Result<Fit> {
    let program = cryptsetup([
        "open",
        "--type",
        "luks2",
        "--test-passphrase",
        "--key-file=-",
    ]);
    tried(program.arg(device), key).await
}

/// Makes a mapping as long as the device below it, if the key fits.
pub async fn resize(name: &str, key: &LuksKey) -> Result<Fit> {
    tried(cryptsetup(["resize", "--key-file=-"]).arg(name), key).await
}

/// Adds a key slot for `new`; `key` opens another one.
pub async fn add_key(device: &Path, key: &LuksKey, new: &LuksKey) -> Result<Fit> {
    // Both keys are on standard input, the first one as long as it is said to be.
    let length = key.bytes().len().to_string();
    let mut both = Vec::with_capacity(key.bytes().len() + new.bytes().len());
    both.extend_from_slice(key.bytes());
    both.extend_from_slice(new.bytes());
    let program = cryptsetup(["luksAddKey", "--batch-mode"])
        .args(DERIVATION)
        .args(["--key-file=-", "--keyfile-size", &length])
        .arg(device)
        .arg("-");
    tried_with(program, both).await
}

/// Removes the key slot that has `key`. The caller makes sure that another one is left that opens.
pub async fn remove_key(device: &Path, key: &LuksKey) -> Result<Fit> {
    let program = cryptsetup(["luksRemoveKey", "--batch-mode", "--key-file=-"]);
    tried(program.arg(device), key).await
}

/// Closes a mapping.
///
/// # Errors
/// `InUse` when it is mounted or open, naming the holders.
pub async fn close(mapping: &Mapped) -> Result<()> {
    let closed = cryptsetup(["close"]).arg(&mapping.name).run().await;
    let Err(error) = closed else { return Ok(()) };
    let (uuid, path) = (mapping.uuid.clone(), mapping.path());
    crate::blocking(move || match DeviceMapper::open()?.find(&uuid)? {
        None => Ok(()),
        Some(left) if left.open > 0 => {
            let users = holders::users_of_device(&path);
            Err(holders::device_in_use(&path, &users).because(error))
        }
        Some(_) => Err(error),
    })
    .await
}

/// Returns true if a device or image begins with a header.
pub fn has_header(device: &Path) -> Result<bool> {
    let mut head = [0; MAGIC.len()];
    let read = File::open(device).and_then(|mut file| file.read_exact(&mut head));
    read.map_err(|error| Error::io(format!("could not read {}", device.display()), error))?;
    Ok(head == MAGIC)
}

/// Forgets the keys of a device or image: overwrites its header, which has the key of its data, and nothing else.
///
/// It is written, not discarded: a disk may keep what it was told to discard.
pub fn forget(device: &Path, header: u64) -> Result<()> {
    let zeros = vec![0; usize::try_from(header).unwrap_or_default()];
    let overwrite = || {
        let mut file = OpenOptions::new().write(true).open(device)?;
        file.write_all(&zeros)?;
        fsync(&file)
    };
    overwrite().map_err(|error| {
        let path = device.display();
        Error::io(format!("could not overwrite the header of {path}"), error)
    })
}

fn cryptsetup<const N: usize>(arguments: [&str; N]) -> Program {
    let mut program = Program::changing(PROGRAM).args(arguments);
    if !has_locks() {
        program = program.arg("--disable-locks");
    }
    if udev::is_running() {
        return program;
    }
    // Otherwise it waits for a udevd that does not answer.
    program.environment("DM_DISABLE_UDEV", "1")
}

/// Makes the directory of cryptsetup's locks, as cryptsetup does. In a container it may be impossible; then the locks of
/// the agent have to do.
fn has_locks() -> bool {
    let made = fs::DirBuilder::new().mode(0o700).create(LOCKS);
    made.is_ok() || Path::new(LOCKS).is_dir()
}

async fn tried(program: Program, key: &LuksKey) -> Result<Fit> {
    tried_with(program, key.bytes().to_vec()).await
}

async fn tried_with(program: Program, input: Vec<u8>) -> Result<Fit> {
    let ended = program.stdin(input).success_up_to(WRONG_KEY).run().await?;
    match ended.status {
        0 => Ok(Fit::Fits),
        WRONG_KEY => Ok(Fit::Wrong),
        _ => Err(refused(&ended.stderr)),
    }
}

/// The error for what cryptsetup refuses for another reason than the key.
fn refused(stderr: &[u8]) -> Error {
    let said = String::from_utf8_lossy(stderr);
    let said: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    Error::new(
        Kind::Precondition,
        format!("cryptsetup refused: {}", said.join("; ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8, length: usize) -> LuksKey {
        LuksKey::new(vec![byte; length]).unwrap()
    }

    #[test]
    fn a_key_has_enough_bytes_and_is_never_shown() {
        for length in [0, 31, LuksKey::LONGEST + 1] {
            let error = LuksKey::new(vec![b'k'; length]).unwrap_err();
            assert_eq!(error.kind(), Kind::Precondition);
            assert!(error.to_string().contains(&length.to_string()), "{error}");
        }
        assert_eq!(format!("{:?}", key(b'k', 32)), "(hidden)");
    }

    #[tokio::test]
    async fn keys_of_a_header_are_added_removed_and_forgotten() {
        if exec::find(PROGRAM).is_none() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        let file = File::create(&image).unwrap();
        file.set_len(16 << 20).unwrap();
        assert!(!has_header(&image).unwrap());
        let (old, new) = (key(1, 64), key(2, 40));
        format(&image, &old, 4 << 20).await.unwrap();
        assert!(has_header(&image).unwrap());
        assert_eq!(try_key(&image, &new).await.unwrap(), Fit::Wrong);
        assert_eq!(add_key(&image, &new, &new).await.unwrap(), Fit::Wrong);
        assert_eq!(add_key(&image, &old, &new).await.unwrap(), Fit::Fits);
        for both in [&old, &new] {
            assert_eq!(try_key(&image, both).await.unwrap(), Fit::Fits);
        }
        assert_eq!(remove_key(&image, &old).await.unwrap(), Fit::Fits);
        assert_eq!(remove_key(&image, &old).await.unwrap(), Fit::Wrong);
        assert_eq!(try_key(&image, &old).await.unwrap(), Fit::Wrong);
        assert_eq!(try_key(&image, &new).await.unwrap(), Fit::Fits);
        forget(&image, 4 << 20).unwrap();
        assert!(!has_header(&image).unwrap());
        fs::write(directory.path().join("other"), vec![0; 1 << 20]).unwrap();
        let error = try_key(&directory.path().join("other"), &new).await;
        assert_eq!(error.unwrap_err().kind(), Kind::Precondition);
    }
}
