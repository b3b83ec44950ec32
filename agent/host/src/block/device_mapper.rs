//! Device-mapper, through its ioctls: tables, suspend and resume, and messages to thin pools.
//!
//! A device is identified by its UUID: the names of LVM's devices are ambiguous to parse and change with a rename.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::stat::{Mode, SFlag, mknod},
};

use crate::{
    DeviceNumber, Sectors,
    system::{DM_HEAD, MapperCall, device_mapper},
    udev::{self, Visibility},
};
use crate::{Error, Kind, Result};

const CONTROL: &str = "/dev/mapper/control";

// linux/dm-ioctl.h
const DEV_CREATE: MapperCall = MapperCall::new("DM_DEV_CREATE", 3);
const DEV_REMOVE: MapperCall = MapperCall::new("DM_DEV_REMOVE", 4);
const DEV_SUSPEND: MapperCall = MapperCall::new("DM_DEV_SUSPEND", 6);
const DEV_STATUS: MapperCall = MapperCall::new("DM_DEV_STATUS", 7);
const TABLE_LOAD: MapperCall = MapperCall::new("DM_TABLE_LOAD", 9);
const TABLE_CLEAR: MapperCall = MapperCall::new("DM_TABLE_CLEAR", 10);
const TABLE_STATUS: MapperCall = MapperCall::new("DM_TABLE_STATUS", 12);
const TARGET_MESSAGE: MapperCall = MapperCall::new("DM_TARGET_MSG", 14);
const LIST_DEVICES: MapperCall = MapperCall::new("DM_LIST_DEVICES", 2);

const SUSPEND: u32 = 1 << 1;
const STATUS_TABLE: u32 = 1 << 4;
const ACTIVE: u32 = 1 << 5;
const INACTIVE: u32 = 1 << 6;
const FULL: u32 = 1 << 8;
const SKIP_LOCKFS: u32 = 1 << 10;
const NO_FLUSH: u32 = 1 << 11;

/// Size of the header of a table line, in bytes (`struct dm_target_spec`).
const LINE_HEAD: usize = 40;
/// Buffer size for replies, which are usually far shorter; a longer table is read again with a larger buffer.
const ANSWER: usize = 16 << 10;
const LARGEST_ANSWER: usize = 16 << 20;

/// The current state of a device-mapper device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapped {
    /// Its name under `/dev/mapper`.
    pub name: String,
    /// Its UUID.
    pub uuid: String,
    /// Its device number.
    pub number: DeviceNumber,
    /// Open count, including mounts.
    pub open: i32,
    /// It is suspended: its I/O waits.
    pub is_suspended: bool,
    /// It has an active table.
    pub is_live: bool,
    /// It has an inactive table, which its next resume activates.
    pub has_waiting_table: bool,
}

/// Timeout for udevd to create a node.
const UDEV_PATIENCE: Duration = Duration::from_secs(10);

/// Timeout for programs that only probe a device to close it.
const LOOKED_AT: Duration = Duration::from_secs(5);

impl Mapped {
    /// The path of its node.
    pub fn path(&self) -> PathBuf {
        Path::new("/dev/mapper").join(&self.name)
    }

    /// Returns true if its node exists and belongs to it.
    pub fn has_node(&self) -> bool {
        DeviceNumber::of_block_device(&self.path()).is_ok_and(|number| number == self.number)
    }

    /// Its node. Where udevd runs, only udevd creates it: a node that is created manually stays when the device is
    /// removed, and later belongs to another device. Elsewhere, the process that created the device may have been
    /// killed before it created the node, or before it removed the node of an earlier device of this name, whose
    /// number another device can have by now.
    ///
    /// # Errors
    /// [`Kind::Busy`] when udevd has not created it in time, `Io` when it is missing and cannot be created.
    pub fn node(&self) -> Result<PathBuf> {
        let path = self.path();
        let deadline = Instant::now() + UDEV_PATIENCE;
        while !self.has_node() && udev::is_running() {
            if Instant::now() >= deadline {
                return Err(self.has_no_node());
            }
            thread::sleep(Duration::from_millis(10));
        }
        if self.has_node() {
            return Ok(path);
        }
        tracing::warn!(device = %self.name, "creating missing or wrong device node");
        let made = match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => mknod(
                &path,
                SFlag::S_IFBLK,
                Mode::S_IRUSR | Mode::S_IWUSR,
                libc::makedev(self.number.major, self.number.minor),
            )
            .map_err(io::Error::from),
        };
        made.map_err(|error| {
            Error::io(
                format!("could not create device node {}", path.display()),
                error,
            )
        })?;
        Ok(path)
    }

    fn has_no_node(&self) -> Error {
        Error::new(
            Kind::Busy,
            format!(
                "udevd did not create {} for device {} within {} s; retry, and if the error persists check that udevd works (`udevadm settle`) and trigger it again (`udevadm trigger --action=change /sys/dev/block/{}:{}`)",
                self.path().display(),
                self.uuid,
                UDEV_PATIENCE.as_secs(),
                self.number.major,
                self.number.minor,
            ),
        )
    }
}

/// One line of a table: its sectors, target type and parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Its first sector.
    pub start: Sectors,
    /// Its length.
    pub length: Sectors,
    /// Its target type: `linear`, `thin`, `thin-pool`, …
    pub kind: String,
    /// Its parameters.
    pub words: String,
}

/// How a device is suspended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendMode {
    /// With its file system frozen and in-flight I/O completed.
    Clean,
    /// Immediately, as before loading a longer table for the same data.
    Quick,
}

/// A handle of the kernel's device-mapper.
#[derive(Debug)]
pub struct DeviceMapper(File);

impl DeviceMapper {
    /// Opens the control device.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is missing.
    pub fn open() -> Result<Self> {
        let file = File::options().read(true).write(true).open(CONTROL);
        file.map(Self).map_err(|error| {
            Error::new(
                Kind::Precondition,
                format!("device-mapper is missing ({CONTROL}); load it with `modprobe dm-mod`, and mount the host's /dev into the container"),
            )
            .because(error)
        })
    }

    /// The device with this UUID; none if it does not exist.
    pub fn find(&self, uuid: &str) -> Result<Option<Mapped>> {
        match self.call(DEV_STATUS, uuid, 0, &[]) {
            Ok(answer) => Ok(Some(answer.mapped())),
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(failed("query", uuid, error)),
        }
    }

    /// The device with this name; none if it does not exist.
    pub fn find_named(&self, name: &str) -> Result<Option<Mapped>> {
        match self.call_named(DEV_STATUS, name) {
            Ok(answer) => Ok(Some(answer.mapped())),
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(failed("query", name, error)),
        }
    }

    /// Removes a device that has no table: its maker was interrupted.
    pub fn remove_named(&self, name: &str) -> Result<()> {
        self.call_named(DEV_REMOVE, name)
            .map(drop)
            .map_err(|error| failed("remove", name, error))
    }

    /// All devices whose UUIDs have this prefix.
    pub fn list(&self, prefix: &str) -> Result<Vec<Mapped>> {
        let answer = self
            .call(LIST_DEVICES, "", 0, &[])
            .map_err(|error| failed("list", prefix, error))?;
        let mut found = Vec::new();
        let mut at = answer.data_start();
        // struct dm_name_list: the number, the offset of the next entry, the name.
        while let Some(number) = answer.u64(at)
            && number != 0
        {
            let name = answer.text(at + 12);
            match self.call_named(DEV_STATUS, &name) {
                Ok(one) => {
                    let one = one.mapped();
                    if one.uuid.starts_with(prefix) {
                        found.push(one);
                    }
                }
                // It was removed meanwhile.
                Err(Errno::ENXIO) => {}
                Err(error) => return Err(failed("query", &name, error)),
            }
            match answer.u32(at + 8) {
                Some(next) if next > 0 => at += usize::try_from(next).unwrap_or(usize::MAX / 2),
                _ => break,
            }
        }
        Ok(found)
    }

    /// The active table.
    pub fn table(&self, uuid: &str) -> Result<Vec<Line>> {
        // Without a flush: reading must not wait for I/O.
        let answer = self
            .call(TABLE_STATUS, uuid, STATUS_TABLE | NO_FLUSH, &[])
            .map_err(|error| failed("read the table of", uuid, error))?;
        answer
            .lines()
            .ok_or_else(|| failed("read the table of", uuid, Errno::EBADMSG))
    }

    /// The status of the first line of the active table; none when the device does not exist (it can be removed at
    /// any time) or has no table.
    pub fn status(&self, uuid: &str) -> Result<Option<String>> {
        match self.call(TABLE_STATUS, uuid, NO_FLUSH, &[]) {
            Ok(answer) => {
                let lines = answer.lines();
                let lines =
                    lines.ok_or_else(|| failed("read the status of", uuid, Errno::EBADMSG))?;
                Ok(lines.into_iter().next().map(|line| line.words))
            }
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(failed("read the status of", uuid, error)),
        }
    }

    /// Creates a device with this table. On failure no device is left behind.
    pub fn create(
        &self,
        name: &str,
        uuid: &str,
        lines: &[Line],
        visibility: Visibility,
    ) -> Result<Mapped> {
        self.create_with(name, uuid, lines, visibility.cookie())
    }

    /// As [`Self::create`], with a cookie for the event that udevd handles once the device is usable.
    pub(crate) fn create_with(
        &self,
        name: &str,
        uuid: &str,
        lines: &[Line],
        cookie: u32,
    ) -> Result<Mapped> {
        let made = self.prepare(name, uuid, lines)?;
        if let Err(error) = self.start(uuid, cookie) {
            let _ = self.remove(uuid);
            return Err(error);
        }
        Ok(made)
    }

    /// Creates a device whose table is inactive until [`start`](Self::start). On failure no device is left behind.
    pub fn prepare(&self, name: &str, uuid: &str, lines: &[Line]) -> Result<Mapped> {
        let made = self.send(DEV_CREATE, &Buffer::new(uuid, name, 0, &[]));
        let made = made
            .map_err(|error| failed("create", uuid, error))?
            .mapped();
        if let Err(error) = self.load(uuid, lines) {
            let _ = self.remove(uuid);
            return Err(error);
        }
        Ok(made)
    }

    /// Activates the first table of a device, with a cookie for the event that udevd handles then.
    pub(crate) fn start(&self, uuid: &str, cookie: u32) -> Result<()> {
        let mut start = Buffer::new(uuid, "", 0, &[]);
        start.put(32, &cookie.to_ne_bytes());
        let started = self.send(DEV_SUSPEND, &start);
        started
            .map(drop)
            .map_err(|error| failed("start", uuid, error))
    }

    /// Loads an inactive table, which the next resume activates.
    pub fn load(&self, uuid: &str, lines: &[Line]) -> Result<()> {
        let mut data = Vec::new();
        for line in lines {
            let mut words = line.words.clone().into_bytes();
            words.push(0);
            // Each line is aligned to eight bytes.
            words.resize(words.len().next_multiple_of(8), 0);
            let next = u32::try_from(LINE_HEAD + words.len()).unwrap_or_default();
            data.extend(line.start.0.to_ne_bytes());
            data.extend(line.length.0.to_ne_bytes());
            data.extend([0; 4]);
            data.extend(next.to_ne_bytes());
            let mut kind = line.kind.clone().into_bytes();
            kind.resize(16, 0);
            data.extend(kind);
            data.extend(words);
        }
        let count = u32::try_from(lines.len()).unwrap_or_default();
        let mut buffer = Buffer::new(uuid, "", 0, &data);
        buffer.put(20, &count.to_ne_bytes());
        self.send(TABLE_LOAD, &buffer)
            .map(drop)
            .map_err(|error| failed("load a table for", uuid, error))
    }

    /// Clears the inactive table.
    pub fn clear(&self, uuid: &str) -> Result<()> {
        self.change(TABLE_CLEAR, uuid, 0, "clear the inactive table of")
    }

    /// Suspends a device: its I/O waits until it is resumed. It stays suspended if the caller dies.
    pub fn suspend(&self, uuid: &str, hold: SuspendMode) -> Result<()> {
        let flags = match hold {
            SuspendMode::Clean => SUSPEND,
            SuspendMode::Quick => SUSPEND | SKIP_LOCKFS | NO_FLUSH,
        };
        self.change(DEV_SUSPEND, uuid, flags, "suspend")
    }

    /// Resumes a device, and activates its inactive table, if any.
    pub fn resume(&self, uuid: &str) -> Result<()> {
        self.change(DEV_SUSPEND, uuid, 0, "resume")
    }

    /// Removes a device. Programs that probe every changed device (LVM's commands, udev) may have it open briefly.
    ///
    /// # Errors
    /// [`Kind::Busy`] when a process has it open for longer.
    pub fn remove(&self, uuid: &str) -> Result<()> {
        let deadline = Instant::now() + LOOKED_AT;
        loop {
            match self.change(DEV_REMOVE, uuid, 0, "remove") {
                Err(error) if error.kind() == Kind::InUse => {
                    if Instant::now() >= deadline {
                        let message = "could not remove a device that another process has open";
                        return Err(Error::new(Kind::Busy, message).because(error));
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                result => return result,
            }
        }
    }

    /// Sends a message to a device, such as `delete 7` to a thin pool.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when the device does not exist, or the pool has no device of this number.
    pub fn message(&self, uuid: &str, text: &str) -> Result<()> {
        let mut data = 0_u64.to_ne_bytes().to_vec();
        data.extend(text.bytes());
        data.push(0);
        self.call(TARGET_MESSAGE, uuid, 0, &data)
            .map(drop)
            .map_err(|error| failed(&format!("send {text:?} to"), uuid, error))
    }

    fn change(&self, call: MapperCall, uuid: &str, flags: u32, what: &str) -> Result<()> {
        self.call(call, uuid, flags, &[])
            .map(drop)
            .map_err(|error| failed(what, uuid, error))
    }

    fn call(&self, call: MapperCall, uuid: &str, flags: u32, data: &[u8]) -> Result<Buffer, Errno> {
        self.send(call, &Buffer::new(uuid, "", flags, data))
    }

    fn call_named(&self, call: MapperCall, name: &str) -> Result<Buffer, Errno> {
        self.send(call, &Buffer::new("", name, 0, &[]))
    }

    fn send(&self, call: MapperCall, request: &Buffer) -> Result<Buffer, Errno> {
        let mut room = ANSWER;
        loop {
            let mut buffer = request.with_room(room);
            device_mapper(&self.0, call, &mut buffer.0).map_err(|error| errno(&error))?;
            if buffer.flags() & FULL == 0 || room >= LARGEST_ANSWER {
                return Ok(buffer);
            }
            room *= 8;
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

fn failed(what: &str, uuid: &str, error: Errno) -> Error {
    let kind = match error {
        Errno::EBUSY => Kind::InUse,
        // The device does not exist, or the pool has no device of this number.
        Errno::ENXIO | Errno::ENODATA => Kind::NotFound,
        _ => Kind::Io,
    };
    Error::new(kind, format!("could not {what} device {uuid}")).because(io::Error::from(error))
}

/// The buffer of an ioctl: the header, then lines, names or a message.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new(uuid: &str, name: &str, flags: u32, data: &[u8]) -> Self {
        let mut buffer = Self(vec![0; DM_HEAD]);
        let head = u32::try_from(DM_HEAD).unwrap_or_default();
        // Version 4.0.0: every device-mapper of the last twenty years.
        buffer.put(0, &4_u32.to_ne_bytes());
        buffer.put(16, &head.to_ne_bytes());
        buffer.put(28, &flags.to_ne_bytes());
        buffer.put(48, name.as_bytes().get(..127).unwrap_or(name.as_bytes()));
        buffer.put(176, uuid.as_bytes().get(..128).unwrap_or(uuid.as_bytes()));
        buffer.0.extend_from_slice(data);
        buffer
    }

    fn with_room(&self, room: usize) -> Self {
        let mut bytes = self.0.clone();
        bytes.resize(bytes.len().max(DM_HEAD + room), 0);
        Self(bytes)
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn u32(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(u32::from_ne_bytes(*bytes))
    }

    fn u64(&self, at: usize) -> Option<u64> {
        let bytes = self.0.get(at..)?.first_chunk()?;
        Some(u64::from_ne_bytes(*bytes))
    }

    /// The zero-terminated text at this offset.
    fn text(&self, at: usize) -> String {
        let bytes = self.0.get(at..).unwrap_or_default();
        let end = bytes.iter().position(|byte| *byte == 0);
        String::from_utf8_lossy(bytes.get(..end.unwrap_or(0)).unwrap_or_default()).into_owned()
    }

    fn data_start(&self) -> usize {
        usize::try_from(self.u32(16).unwrap_or_default()).unwrap_or_default()
    }

    fn flags(&self) -> u32 {
        self.u32(28).unwrap_or_default()
    }

    fn mapped(&self) -> Mapped {
        let flags = self.flags();
        Mapped {
            name: self.text(48),
            uuid: self.text(176),
            number: DeviceNumber::from_dev(self.u64(40).unwrap_or_default()),
            open: self.u32(24).unwrap_or_default().cast_signed(),
            is_suspended: flags & SUSPEND != 0,
            is_live: flags & ACTIVE != 0,
            has_waiting_table: flags & INACTIVE != 0,
        }
    }

    /// The lines of a table; none where there are fewer than the header says, so that a truncated table does not
    /// count as complete.
    fn lines(&self) -> Option<Vec<Line>> {
        let (start, count) = (self.data_start(), self.u32(20).unwrap_or_default());
        let mut at = start;
        let mut lines = Vec::new();
        for _ in 0..count {
            lines.push(Line {
                start: Sectors(self.u64(at)?),
                length: Sectors(self.u64(at + 8)?),
                kind: self.text(at + 24),
                words: self.text(at + LINE_HEAD),
            });
            // In replies this counts from the first line, in requests from the line itself.
            at = start + usize::try_from(self.u32(at + 20)?).ok()?;
        }
        Some(lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_is_cut_off_is_not_taken_for_a_shorter_one() {
        let line = |next: u32| {
            let mut line = vec![0; LINE_HEAD + 8];
            line[8..16].copy_from_slice(&8_u64.to_ne_bytes());
            line[20..24].copy_from_slice(&next.to_ne_bytes());
            line[24..30].copy_from_slice(b"linear");
            line
        };
        let next = u32::try_from(LINE_HEAD + 8).unwrap();
        let both = [line(next), line(2 * next)].concat();
        let mut answer = Buffer::new("uuid", "", 0, &both);
        answer.put(20, &2_u32.to_ne_bytes());
        let lines = answer.lines().unwrap();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[1].length, lines[1].kind.as_str()),
            (Sectors(8), "linear")
        );
        answer.0.truncate(DM_HEAD + LINE_HEAD + 8);
        assert_eq!(answer.lines(), None);
    }
}
