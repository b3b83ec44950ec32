//! What takes the bytes of strangers, each as a function of them: whatever they are, it comes to an end and does not panic.
//!
//! `cargo fuzz run --fuzz-dir tests/fuzz TARGET` drives them by what they cover; `tests/corpus.rs` over what was found worth
//! keeping, and over what becomes of that.

use drumlin::fuzzing::Server;
use drumlin_core::fuzzing;
use drumlin_crd::{Quantity, read};

/// A file of manifests.
pub fn manifests(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(manifest) = read(text) {
        for document in &manifest.documents {
            let _ = (document.object.key(), document.place_of("spec.capacity"));
            let _ = document.object.wrong_after(&document.object);
        }
    }
}

/// The text of a volume group on its disks.
pub fn lvm_metadata(data: &[u8]) {
    fuzzing::lvm_metadata(&String::from_utf8_lossy(data));
}

/// `/proc/self/mountinfo`.
pub fn mount_table(data: &[u8]) {
    fuzzing::mount_table(data);
}

/// The head of a device and, as long as the first two bytes say, its tail.
pub fn superblocks(data: &[u8]) {
    let (length, rest) = match data {
        [a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        _ => (0, data),
    };
    let (tail, head) = rest.split_at(length.min(rest.len()));
    fuzzing::superblocks(head, tail);
}

/// Ids, names and paths.
pub fn ids(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        fuzzing::ids(text);
    }
}

/// A quantity, which is the same when it is read back.
///
/// # Panics
/// When it is not.
pub fn quantities(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(quantity) = text.parse::<Quantity>() else {
        return;
    };
    let _ = quantity.nanos();
    if let Ok(bytes) = quantity.bytes() {
        let again = Quantity::from_bytes(bytes).bytes();
        assert_eq!(again.ok(), Some(bytes), "{text}");
    }
}

/// A request: the first two bytes say of which method, among those of all dialects, and the rest is its message.
///
/// # Panics
/// When it is not answered as gRPC wants it.
pub fn requests(data: &[u8]) {
    thread_local! {
        static SERVER: Server = Server::new().unwrap_or_else(|error| panic!("{error:#}"));
    }
    let [a, b, message @ ..] = data else { return };
    SERVER.with(|server| {
        let method = usize::from(u16::from_le_bytes([*a, *b])) % server.methods().len();
        if let Err(error) = server.call(method, message) {
            panic!("{:?}: {error:#}", server.methods().get(method));
        }
    });
}
