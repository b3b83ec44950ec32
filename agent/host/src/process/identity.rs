//! The identity of this host, and of its current boot.

use std::fs;

use crate::{Error, Result};

/// The host name.
pub fn host_name() -> Result<String> {
    let name = nix::unistd::gethostname()
        .map_err(|errno| Error::io("could not get the host name", errno))?;
    name.into_string().map_err(|name| {
        Error::invalid(format!(
            "the host name {} is not valid UTF-8; set a node name",
            name.display()
        ))
    })
}

/// The boot id: it changes at each boot; mounts and loop devices do not survive one.
pub fn boot_id() -> Result<String> {
    const PATH: &str = "/proc/sys/kernel/random/boot_id";
    let id = fs::read_to_string(PATH)
        .map_err(|error| Error::io(format!("could not read {PATH}"), error))?;
    Ok(id.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_a_name_and_the_same_boot_twice() {
        assert!(!host_name().unwrap().is_empty());
        let id = boot_id().unwrap();
        assert_eq!(id, boot_id().unwrap());
        uuid::Uuid::parse_str(&id).unwrap();
    }
}
