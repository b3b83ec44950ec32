//! Every way a client writes its `:authority`, cut at every place.

use super::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A HEADERS frame with this payload.
fn headers(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![0, length[0], length[1], HEADERS, flags, 0, 0, 0, 1];
    frame.extend(payload);
    frame
}

/// A whole connection: the preface, settings, a request with these fields, and data that looks like one.
fn connection(flags: u8, fields: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    bytes.extend(headers(flags, fields));
    let inner = headers(4, &plain(0x41, b"/in/data"));
    bytes.extend([0, 0, u8::try_from(inner.len()).unwrap(), 0, 1, 0, 0, 0, 1]);
    bytes.extend(inner);
    bytes
}

/// `:method: POST`, a new size of the table, `:path` as a literal, then the authority, then `content-type`.
fn request(authority: &[u8]) -> Vec<u8> {
    let mut fields = vec![0x83, 0x3f, 0xe1, 0x1f];
    fields.extend(plain(0x04, b"/csi.v1.Identity/Probe"));
    fields.extend(authority);
    fields.extend([0x40, 2]);
    fields.extend(b"te");
    fields.extend(plain(0x5f, b"application/grpc").split_off(1));
    fields.extend(plain(0x5f, b"application/grpc"));
    fields
}

fn plain(name: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![name, u8::try_from(value.len()).unwrap()];
    field.extend(value);
    field
}

/// The same, packed: bits of the characters that the tests need, from the table of RFC 7541.
fn packed(name: u8, value: &str) -> Vec<u8> {
    let mut bits = String::new();
    for character in value.chars() {
        bits += match character {
            'c' => "00100",
            's' => "01000",
            'i' => "00110",
            'o' => "00111",
            'a' => "00011",
            't' => "01001",
            'k' => "1110101",
            'X' => "11111100",
            '+' => "11111111011",
            '~' => "1111111111101",
            '.' => "010111",
            '/' => "011000",
            '%' => "010101",
            '-' => "010110",
            '2' => "00010",
            'F' => "1100010",
            ':' => "1011100",
            'u' => "101101",
            'h' => "100111",
            'r' => "101100",
            'y' => "1111010",
            other => panic!("{other}"),
        };
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    let bytes: Vec<u8> = (0..bits.len() / 8)
        .map(|at| u8::from_str_radix(&bits[at * 8..at * 8 + 8], 2).unwrap())
        .collect();
    let mut field = vec![name, 0x80 | u8::try_from(bytes.len()).unwrap()];
    field.extend(bytes);
    field
}

/// The same with the name in full, packed too, and of a field that is never to be indexed.
fn named(value: &str) -> Vec<u8> {
    let name = packed(0x10, ":authority");
    [
        &name,
        &packed(0, value)[1..],
        &[0x40, 10],
        b":authority",
        &plain(0, value.as_bytes())[1..],
    ]
    .concat()
}

/// What comes out when the bytes come in two parts.
async fn through(bytes: &[u8], cut: usize) -> Vec<u8> {
    let (mut client, server) = UnixStream::pair().unwrap();
    let mut server = ValidAuthority::new(server);
    let mut out = Vec::new();
    let (first, second) = bytes.split_at(cut);
    client.write_all(first).await.unwrap();
    // What can be handed on is, before more has come.
    let _ = tokio::time::timeout(
        std::time::Duration::from_millis(1),
        server.read_buf(&mut out),
    )
    .await;
    client.write_all(second).await.unwrap();
    drop(client);
    server.read_to_end(&mut out).await.unwrap();
    out
}

#[tokio::test]
async fn a_path_becomes_a_host_wherever_it_stands_and_is_cut() {
    for (sent, wanted) in [
        (plain(0x41, b"/csi/csi.sock"), plain(0x41, b"-csi-csi.sock")),
        (
            plain(0x01, b"tmp%2Fcsi.sock"),
            plain(0x01, b"tmp-2Fcsi.sock"),
        ),
        (plain(0x11, b"/a b@c:d"), plain(0x11, b"-a-b-c-d")),
        (named("/csi/csi.sock"), named("-csi-csi.sock")),
        (packed(0x41, "/csi/csi.sock"), packed(0x41, "-csi-csi.sock")),
        (packed(0x01, "/aX~+kt%2F/"), packed(0x01, "-aX~+kt-2F-")),
        (
            packed(0x41, "%2Fcsi%2Fk.sock"),
            packed(0x41, "-2Fcsi-2Fk.sock"),
        ),
    ] {
        for (flags, before) in [(4, &[][..]), (0x2c, &[0, 0, 0, 0, 0, 16])] {
            let whole =
                |authority: &[u8]| connection(flags, &[before, &request(authority)].concat());
            let (sent, wanted) = (whole(&sent), whole(&wanted));
            for cut in 0..=sent.len() {
                assert_eq!(through(&sent, cut).await, wanted, "cut at {cut}");
            }
        }
    }
}

#[tokio::test]
async fn all_else_is_left_as_it_is() {
    for sent in [
        connection(4, &request(&plain(0x41, b"localhost"))),
        connection(4, &request(&plain(0x41, b"[::1]:80"))),
        connection(4, &request(&packed(0x41, "cost"))),
        connection(4, &request(&[0x81])),
        connection(4, &request(&plain(0x04, b"/another/path%2F"))),
        // Cut off, too long, and no HTTP/2 at all.
        connection(4, &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        connection(4, &[0x41, 30, b'/']),
        connection(0x2c, &[0x41]),
        [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x01".as_slice(),
            &[b'/'; 100],
        ]
        .concat(),
        b"GET / HTTP/1.1\r\nHost: /a\r\n\r\n".to_vec(),
        b"x".to_vec(),
        Vec::new(),
    ] {
        for cut in 0..=sent.len() {
            assert_eq!(through(&sent, cut).await, sent, "cut at {cut}");
        }
    }
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_longer(fields: Vec<u8>, flags: u8) {
        let mut bytes = connection(flags, &fields);
        let length = bytes.len();
        let mended = Frames::new().mend(&mut bytes);
        proptest::prop_assert_eq!((mended, bytes.len()), (length, length));
    }
}
