//! Log lines in the journal of systemd, with fields to select them by: `journalctl DRUMLIN_NAME=data`
//! (systemd.journal-fields(7), and the journal's native protocol).

use std::{
    env,
    fmt::{self, Write as _},
    io::{self, Write},
    os::{fd::AsFd, unix::net::UnixDatagram},
};

use nix::sys::stat::fstat;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, format::Writer},
    registry::LookupSpan,
};

/// Where the journal takes entries.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The device and inode of the stream to the journal that systemd gives to a service (systemd.exec(5)).
const STREAM: &str = "JOURNAL_STREAM";

/// The journal.
#[derive(Debug)]
pub(super) struct Journal(UnixDatagram);

/// The format of an entry: a line for each field.
#[derive(Debug)]
pub(super) struct EntryFormat;

/// What an event says.
#[derive(Debug, Default)]
struct Entry {
    /// The message, and after it all fields, as in a log of text.
    message: String,
    rest: String,
    /// The fields, each in a line.
    fields: String,
}

impl Journal {
    /// The journal, if that is where standard error goes.
    pub(super) fn of_standard_error() -> Option<Self> {
        let stream = env::var(STREAM).ok()?;
        let found = fstat(io::stderr().as_fd()).ok()?;
        if stream != format!("{}:{}", found.st_dev, found.st_ino) {
            return None;
        }
        let socket = UnixDatagram::unbound().ok()?;
        socket.connect(SOCKET).ok()?;
        Some(Self(socket))
    }
}

impl<'a> MakeWriter<'a> for Journal {
    type Writer = &'a Journal;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

impl Write for &Journal {
    /// Sends one entry.
    fn write(&mut self, entry: &[u8]) -> io::Result<usize> {
        if self.0.send(entry).is_err() {
            // It is too large, or the journal is away: its text goes where it would go without fields.
            let text = entry.split_inclusive(|byte| *byte == b'\n').next();
            let text = text.and_then(|text| text.strip_prefix(b"MESSAGE="));
            io::stderr().lock().write_all(text.unwrap_or(entry))?;
        }
        Ok(entry.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<S, N> FormatEvent<S, N> for EntryFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut entry = Entry::default();
        event.record(&mut entry);
        let priority = match *event.metadata().level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            Level::INFO => 6,
            Level::DEBUG | Level::TRACE => 7,
        };
        let Entry {
            message,
            rest,
            fields,
        } = entry;
        write!(
            writer,
            "MESSAGE={message}{rest}\nPRIORITY={priority}\nSYSLOG_IDENTIFIER=drumlin\n{fields}"
        )
    }
}

impl Entry {
    fn add(&mut self, name: &str, value: &str) {
        let upper = |character: char| match character {
            'a'..='z' | '0'..='9' => character.to_ascii_uppercase(),
            _ => '_',
        };
        let key: String = name.chars().map(upper).collect();
        let _ = writeln!(self.fields, "DRUMLIN_{key}={}", line(value));
        let parts: Vec<&str> = value.split('/').collect();
        // An object of manifests.
        if let ("object", [kind, namespace, object]) = (name, parts.as_slice()) {
            self.add("kind", kind);
            self.add("namespace", namespace);
            self.add("name", object);
        }
    }
}

impl Visit for Entry {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(
            self.rest,
            " {}={}",
            field.name(),
            line(&format!("{value:?}"))
        );
        self.add(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let value = format!("{value:?}");
        if field.name() == "message" {
            self.message = line(&value);
            return;
        }
        let _ = write!(self.rest, " {}={}", field.name(), line(&value));
        self.add(field.name(), &value);
    }
}

/// A text in one line: the next one would be another field.
fn line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::subscriber::with_default;
    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;

    /// What was written.
    #[derive(Debug, Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(log: impl FnOnce()) -> Vec<String> {
        let written = Written::default();
        let maker = written.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(EntryFormat)
            .with_writer(move || maker.clone());
        with_default(Registry::default().with(layer), log);
        let text = written.0.lock().unwrap().clone();
        let text = String::from_utf8(text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn an_entry_has_the_text_and_a_field_for_each_value() {
        let object = "Volume/db/pg-data";
        let entry = written(
            || tracing::warn!(object = %object, reason = "VolumeLost", rpc.code = ?Some(5), "object is stalled"),
        );
        assert_eq!(
            entry,
            [
                "MESSAGE=object is stalled object=Volume/db/pg-data reason=\"VolumeLost\" rpc.code=Some(5)",
                "PRIORITY=4",
                "SYSLOG_IDENTIFIER=drumlin",
                "DRUMLIN_OBJECT=Volume/db/pg-data",
                "DRUMLIN_KIND=Volume",
                "DRUMLIN_NAMESPACE=db",
                "DRUMLIN_NAME=pg-data",
                "DRUMLIN_REASON=VolumeLost",
                "DRUMLIN_RPC_CODE=Some(5)",
            ]
        );
    }

    #[test]
    fn no_value_makes_a_field_of_its_own() {
        let evil = "x\nPRIORITY=0\nDRUMLIN_NAME=y";
        let entry = written(|| tracing::info!(volume.name = evil, detail = %evil, "made\nup"));
        assert_eq!(entry[0].split(' ').next(), Some("MESSAGE=made"));
        let keys: Vec<&str> = entry
            .iter()
            .map(|line| line.split('=').next().unwrap())
            .collect();
        let own = [
            "MESSAGE",
            "PRIORITY",
            "SYSLOG_IDENTIFIER",
            "DRUMLIN_VOLUME_NAME",
            "DRUMLIN_DETAIL",
        ];
        assert_eq!(keys, own);
        assert_eq!(entry[1], "PRIORITY=6");
    }
}
