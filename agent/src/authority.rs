//! Lets clients in that say the socket's path where HTTP/2 wants a host name.
//!
//! Over a unix socket gRPC clients send as `:authority` what they like: `localhost` (kubelet, the sidecars), the path
//! (`/csi/csi.sock`: older Go, Java), or the path with `%2F` (C++, Python, Ruby). The server's HTTP/2 library takes
//! nothing but a valid host and has no way to be told otherwise, so the bytes that no host has become `-` on their way
//! in. They are replaced where they stand, length for length: the header tables of both ends stay in step.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::UnixStream,
};
use tonic::transport::server::{Connected, UdsConnectInfo};

/// What an HTTP/2 connection begins with (RFC 9113, 3.4), in bytes.
const PREFACE: usize = 24;
/// The head of a frame (RFC 9113, 4.1), in bytes.
const HEAD: usize = 9;
/// The type of a frame that begins a request.
const HEADERS: u8 = 1;
/// The largest frame that the server lets a client send, in bytes.
const FRAME: usize = 16_384;
/// So much is read at a time, in bytes.
const CHUNK: usize = 8 << 10;

/// A connection whose requests have a valid `:authority`.
#[derive(Debug)]
pub(crate) struct ValidAuthority {
    stream: UnixStream,
    frames: Frames,
    /// Read, and perhaps the beginning of a frame that must be seen whole.
    held: BytesMut,
    /// To be handed on.
    ready: BytesMut,
}

impl ValidAuthority {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            frames: Frames::new(),
            held: BytesMut::new(),
            ready: BytesMut::new(),
        }
    }

    /// Whether a request has begun.
    pub(crate) fn has_asked(&self) -> bool {
        self.frames.has_asked
    }
}

impl AsyncRead for ValidAuthority {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while this.ready.is_empty() {
            this.held.reserve(CHUNK);
            let stream = Pin::new(&mut this.stream);
            let count = ready!(tokio_util::io::poll_read_buf(
                stream,
                context,
                &mut this.held
            ))?;
            let whole = match count {
                0 => this.held.len(),
                _ => this.frames.mend(&mut this.held),
            };
            this.ready = this.held.split_to(whole);
            if count == 0 {
                break;
            }
        }
        let count = this.ready.len().min(out.remaining());
        if let Some(bytes) = this.ready.get(..count) {
            out.put_slice(bytes);
        }
        this.ready.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ValidAuthority {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for ValidAuthority {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

/// Where in its frames a connection is.
#[derive(Debug)]
struct Frames {
    /// So many bytes are none of our business before the next head of a frame.
    passing: usize,
    /// Whether a frame has come that begins a request.
    has_asked: bool,
}

impl Frames {
    fn new() -> Self {
        Self {
            passing: PREFACE,
            has_asked: false,
        }
    }

    /// Mends the requests in `bytes`; says how many of them may be handed on. The rest must be given again, with more.
    fn mend(&mut self, bytes: &mut [u8]) -> usize {
        let mut at = 0;
        loop {
            let pass = self.passing.min(bytes.len() - at);
            self.passing -= pass;
            at += pass;
            let Some(&[a, b, c, kind, flags, ..]) = bytes.get(at..at + HEAD) else {
                return at;
            };
            let end = HEAD + usize::from(a) * 65_536 + usize::from(b) * 256 + usize::from(c);
            self.has_asked |= kind == HEADERS;
            if kind == HEADERS && end <= HEAD + FRAME {
                let Some(frame) = bytes.get_mut(at + HEAD..at + end) else {
                    return at;
                };
                mend_request(frame, flags);
            }
            self.passing = end;
        }
    }
}

/// Mends the `:authority` in the payload of a HEADERS frame (RFC 9113, 6.2).
fn mend_request(payload: &mut [u8], flags: u8) {
    const PADDED: u8 = 0x8;
    const PRIORITY: u8 = 0x20;
    let skip = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let Some(mut fields) = payload.get_mut(skip..) else {
        return;
    };
    // What is cut off or wrong is left to the server to refuse.
    while let Some(rest) = mend_field(fields) {
        fields = rest;
    }
}

/// Mends one field of a header block (RFC 7541, 6), if it is that one; what follows it is next.
fn mend_field(mut fields: &mut [u8]) -> Option<&mut [u8]> {
    /// The place of `:authority` in the table that every connection begins with (RFC 7541, appendix A).
    const AUTHORITY: usize = 1;
    /// C++ says it in full.
    const NAME: &[u8] = b":authority";
    const NAME_PACKED: [u8; 8] = [0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
    let name_bits = match fields.first()? {
        // A whole field from a table, then a new size of the table.
        0x80.. => return Some(integer(fields, 7)?.1),
        0x20..0x40 => return Some(integer(fields, 5)?.1),
        0x40.. => 6,
        _ => 4,
    };
    let name;
    (name, fields) = integer(fields, name_bits)?;
    let mut is_authority = name == AUTHORITY;
    if name == 0 {
        let word;
        (_, word, fields) = string(fields)?;
        is_authority = *word == *NAME || *word == NAME_PACKED;
    }
    let (is_packed, value, rest) = string(fields)?;
    if is_authority {
        if is_packed {
            mend_packed(value);
        } else {
            mend_plain(value);
        }
    }
    Some(rest)
}

/// An integer whose first byte has so many bits of it (RFC 7541, 5.1).
fn integer(bytes: &mut [u8], bits: u32) -> Option<(usize, &mut [u8])> {
    let most = (1 << bits) - 1;
    let (first, mut rest) = bytes.split_first_mut()?;
    let mut number = usize::from(*first) & most;
    if number < most {
        return Some((number, rest));
    }
    for shift in [0, 7, 14, 21] {
        let more;
        (more, rest) = rest.split_first_mut()?;
        number += usize::from(*more & 0x7f) << shift;
        if *more < 0x80 {
            return Some((number, rest));
        }
    }
    None
}

/// A text (RFC 7541, 5.2): whether it is packed, its bytes, and what follows.
fn string(bytes: &mut [u8]) -> Option<(bool, &mut [u8], &mut [u8])> {
    let is_packed = bytes.first()? & 0x80 != 0;
    let (length, rest) = integer(bytes, 7)?;
    let (text, rest) = rest.split_at_mut_checked(length)?;
    Some((is_packed, text, rest))
}

/// Mends a text that stands as it is.
fn mend_plain(text: &mut [u8]) {
    if text.iter().any(|byte| b"/%".contains(byte)) {
        for byte in text {
            if !byte.is_ascii_alphanumeric() && !b"-._".contains(byte) {
                *byte = b'-';
            }
        }
    }
}

/// Mends a text in the code of RFC 7541, appendix B: `/`, `%` and `-` have six bits each there.
fn mend_packed(text: &mut [u8]) {
    const PERCENT: u16 = 0x15;
    const HYPHEN: u16 = 0x16;
    const SLASH: u16 = 0x18;
    /// Which codes have how many bits: (bits, first, last). Longer ones stand for nothing that is in a path.
    const LENGTHS: [(u16, u16, u16); 10] = [
        (5, 0x0, 0x9),
        (6, 0x14, 0x2d),
        (7, 0x5c, 0x7b),
        (8, 0xf8, 0xfd),
        (10, 0x3f8, 0x3fc),
        (11, 0x7fa, 0x7fc),
        (12, 0xffa, 0xffb),
        (13, 0x1ff8, 0x1ffd),
        (14, 0x3ffc, 0x3ffd),
        (15, 0x7ffc, 0x7ffe),
    ];
    let total = text.len() * 8;
    let mut at = 0;
    while at < total {
        let code = |text: &[u8], bits: u16| {
            (0..usize::from(bits)).try_fold(0, |code, bit| {
                let byte = text.get((at + bit) / 8)?;
                Some(code << 1 | u16::from(*byte >> (7 - (at + bit) % 8) & 1))
            })
        };
        let found = LENGTHS.iter().find_map(|&(bits, first, last)| {
            let code = code(text, bits)?;
            (first..=last).contains(&code).then_some((bits, code))
        });
        // The end is filled with ones, which are no code.
        let Some((bits, code)) = found else { return };
        if bits == 6 && (code == PERCENT || code == SLASH) {
            for bit in 0..6 {
                let place = at + bit;
                let mask = 1 << (7 - place % 8);
                if let Some(byte) = text.get_mut(place / 8) {
                    if HYPHEN >> (5 - bit) & 1 == 1 {
                        *byte |= mask;
                    } else {
                        *byte &= !mask;
                    }
                }
            }
        }
        at += usize::from(bits);
    }
}

#[cfg(test)]
mod tests;
