//! Accepts clients that send the path of the socket as `:authority`, where HTTP/2 requires a host name.
//!
//! Over a unix socket, gRPC clients send different values of `:authority`: `localhost` (kubelet, the sidecars), the
//! path (`/csi/csi.sock`: older Go, Java), or the path with `%2F` (C++, Python, Ruby). The HTTP/2 library of the server
//! accepts only a valid host and cannot be configured otherwise, so bytes that are invalid in a host are replaced by
//! `-` on receipt. They are replaced in place, with the same length, so that the header tables of both ends stay
//! synchronized.

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

/// Length of the HTTP/2 connection preface (RFC 9113, 3.4), in bytes.
const PREFACE: usize = 24;
/// Length of a frame header (RFC 9113, 4.1), in bytes.
const HEAD: usize = 9;
/// The type of a frame that begins a request.
const HEADERS: u8 = 1;
/// Maximum size of a frame from a client, in bytes.
const FRAME: usize = 16_384;
/// Size of a read, in bytes.
const CHUNK: usize = 8 << 10;

/// A connection whose requests have a valid `:authority`.
#[derive(Debug)]
pub(crate) struct ValidAuthority {
    stream: UnixStream,
    frames: Frames,
    /// Received bytes, possibly the beginning of a frame that must be complete before it is processed.
    held: BytesMut,
    /// Processed bytes to be passed on.
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

    /// Returns true if a request has begun.
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

/// The position of a connection within its frames.
#[derive(Debug)]
struct Frames {
    /// Number of bytes to pass on unchanged before the next frame header.
    passing: usize,
    /// True if a frame that begins a request was received.
    has_asked: bool,
}

impl Frames {
    fn new() -> Self {
        Self {
            passing: PREFACE,
            has_asked: false,
        }
    }

    /// Rewrites the requests in `bytes`. Returns the number of bytes that can be passed on; the rest must be passed
    /// again together with further bytes.
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

/// Rewrites the `:authority` in the payload of a HEADERS frame (RFC 9113, 6.2).
fn mend_request(payload: &mut [u8], flags: u8) {
    const PADDED: u8 = 0x8;
    const PRIORITY: u8 = 0x20;
    let skip = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let Some(mut fields) = payload.get_mut(skip..) else {
        return;
    };
    // A truncated or invalid frame is left for the server to refuse.
    while let Some(rest) = mend_field(fields) {
        fields = rest;
    }
}

/// Rewrites one field of a header block (RFC 7541, 6), if it is `:authority`. Returns the remaining block.
fn mend_field(mut fields: &mut [u8]) -> Option<&mut [u8]> {
    /// The index of `:authority` in the static table (RFC 7541, appendix A).
    const AUTHORITY: usize = 1;
    /// C++ clients send the literal name.
    const NAME: &[u8] = b":authority";
    const NAME_PACKED: [u8; 8] = [0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
    let name_bits = match fields.first()? {
        // An indexed field, then a dynamic table size update.
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

/// Decodes an integer with a prefix of this many bits in its first byte (RFC 7541, 5.1).
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

/// Splits off a string (RFC 7541, 5.2): whether it is Huffman-coded, its bytes, and the rest.
fn string(bytes: &mut [u8]) -> Option<(bool, &mut [u8], &mut [u8])> {
    let is_packed = bytes.first()? & 0x80 != 0;
    let (length, rest) = integer(bytes, 7)?;
    let (text, rest) = rest.split_at_mut_checked(length)?;
    Some((is_packed, text, rest))
}

/// Rewrites a literal string.
fn mend_plain(text: &mut [u8]) {
    if text.iter().any(|byte| b"/%".contains(byte)) {
        for byte in text {
            if !byte.is_ascii_alphanumeric() && !b"-._".contains(byte) {
                *byte = b'-';
            }
        }
    }
}

/// Rewrites a Huffman-coded string (RFC 7541, appendix B): the codes of `/`, `%` and `-` have six bits each.
fn mend_packed(text: &mut [u8]) {
    const PERCENT: u16 = 0x15;
    const HYPHEN: u16 = 0x16;
    const SLASH: u16 = 0x18;
    /// Code lengths: (bits, first, last). Longer codes are for characters that do not occur in a path.
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
        // The padding consists of ones, which are not a code.
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
