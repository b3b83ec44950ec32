//! What a mutation is, and how it is written.
//!
//! | change | meaning |
//! |---|---|
//! | `code FROM TO [TEXT]` | errors of a code, whose message contains a text, have another code; `OK` is an empty message |
//! | `fail TO [TEXT]` | what succeeds fails, after it was done, if the request contains a text |
//! | `repeat TO` | the same request again fails, while no call of the inverse method succeeded |
//! | `skip` | nothing is done; the response is an empty message |
//! | `mute` | errors have no message |
//! | `request EDIT` | the agent sees another request |
//! | `response EDIT` | the caller sees another response |
//!
//! An edit is `clear PATH`, `set PATH VALUE`, `double PATH` (each entry twice) or `drop PATH` (without the last entry),
//! where a path is names of fields separated by dots.

use anyhow::{Context, bail, ensure};
use drumlin_cluster::CODE_NAMES;
use tonic::Code;

use super::wire::{Edit, Schema};

/// A change of one RPC.
#[derive(Debug)]
pub(super) struct Mutation {
    /// `<package>.<service>/<method>`; only an edit needs one that exists.
    pub(super) method: String,
    pub(super) change: Change,
}

#[derive(Debug)]
pub(super) enum Change {
    Code {
        from: Code,
        containing: String,
        to: Code,
    },
    Fail {
        containing: String,
        to: Code,
    },
    Repeat(Code),
    Skip,
    Mute,
    Request(Edit),
    Response(Edit),
}

impl Mutation {
    /// # Errors
    /// Names what is not understood.
    pub(super) fn parse(text: &str) -> anyhow::Result<Self> {
        let (method, rest) = text
            .split_once(' ')
            .context("a mutation is a method and a change")?;
        let schema = Schema::load()?;
        let words: Vec<&str> = rest.split(' ').collect();
        let change = match *words.as_slice() {
            ["code", from, to, ref text @ ..] => Change::Code {
                from: code(from)?,
                containing: text.join(" "),
                to: code(to)?,
            },
            ["fail", to, ref text @ ..] => Change::Fail {
                containing: text.join(" "),
                to: failure(to)?,
            },
            ["repeat", to] => Change::Repeat(failure(to)?),
            ["skip"] => Change::Skip,
            ["mute"] => Change::Mute,
            ["request", ref edit @ ..] => {
                let (request, _) = schema.messages_of(method)?;
                Change::Request(schema.edit(&request, edit)?)
            }
            ["response", ref edit @ ..] => {
                let (_, response) = schema.messages_of(method)?;
                Change::Response(schema.edit(&response, edit)?)
            }
            _ => bail!("there is no change {rest:?}"),
        };
        Ok(Self {
            method: method.to_owned(),
            change,
        })
    }
}

fn code(name: &str) -> anyhow::Result<Code> {
    let found = CODE_NAMES.iter().find(|(_, known)| *known == name);
    let (code, _) = found.with_context(|| format!("there is no code {name}"))?;
    Ok(*code)
}

fn failure(name: &str) -> anyhow::Result<Code> {
    let code = code(name)?;
    ensure!(code != Code::Ok, "OK is no failure");
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_name() {
        for (number, (_, name)) in CODE_NAMES.iter().enumerate() {
            let number = i32::try_from(number).unwrap();
            assert_eq!(code(name).unwrap(), Code::from(number), "{name}");
            assert_eq!(i32::from(Code::from(number)), number, "{name}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, expected) in [
            ("csi.v1.Controller/CreateVolume", "a method and a change"),
            (
                "csi.v1.Controller/MakeVolume request clear name",
                "MakeVolume",
            ),
            ("csi.v1.Controller/CreateVolume explode", "explode"),
            ("csi.v1.Controller/CreateVolume fail GONE", "GONE"),
            ("csi.v1.Controller/CreateVolume repeat OK", "OK"),
            (
                "csi.v1.Controller/CreateVolume response clear volume.name",
                "volume.name",
            ),
            (
                "csi.v1.Controller/CreateVolume response set volume.capacity_bytes big",
                "big",
            ),
        ] {
            let error = format!("{:#}", Mutation::parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
