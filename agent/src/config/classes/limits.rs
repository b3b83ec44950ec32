//! The highest rates of the volumes of a class.

use drumlin_core::host::io_limits::{IoLimits, LOWEST_BYTES, LOWEST_IOPS};
use drumlin_crd::Quantity;
use serde::{Deserialize, Serialize};

use super::{
    super::key::{AtKey, refused},
    values::FileBytes,
};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a map such as {readIops: 1000}"
)]
pub(super) struct FileLimits {
    /// Reads per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_iops: Option<u64>,
    /// Writes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_iops: Option<u64>,
    /// Such as `100Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read_bytes_per_second: Option<FileBytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write_bytes_per_second: Option<FileBytes>,
}

impl FileLimits {
    /// The limits.
    ///
    /// # Errors
    /// The error names the field that is not valid.
    pub(super) fn limits(&self) -> anyhow::Result<IoLimits> {
        let rate = |field: &str, rate: Option<u64>| match rate {
            Some(rate) if rate < LOWEST_IOPS => refused(
                &format!("limits.{field}"),
                format!("{rate} must be at least {LOWEST_IOPS}; leave it out for no limit"),
            ),
            rate => Ok(rate),
        };
        let bandwidth = |field: &str, rate: Option<&FileBytes>| {
            let Some(rate) = rate else {
                return Ok(None);
            };
            let key = format!("limits.{field}");
            let bytes = rate.bytes().at_key(&key)?;
            if bytes < LOWEST_BYTES {
                let (rate, lowest) = (rate.text(), Quantity::from_bytes(LOWEST_BYTES));
                let why = format!(
                    "{rate} must be at least {lowest} (bytes per second); leave it out for no limit"
                );
                return refused(&key, why);
            }
            Ok(Some(bytes))
        };
        Ok(IoLimits {
            read_iops: rate("readIops", self.read_iops)?,
            write_iops: rate("writeIops", self.write_iops)?,
            read_bytes: bandwidth("readBytesPerSecond", self.read_bytes_per_second.as_ref())?,
            write_bytes: bandwidth("writeBytesPerSecond", self.write_bytes_per_second.as_ref())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> anyhow::Result<IoLimits> {
        drumlin_crd::yaml::from_str::<FileLimits>(text)?.limits()
    }

    #[test]
    fn each_rate_has_a_limit_of_its_own_or_none() {
        assert!(limits("{}").unwrap().is_none());
        let given = limits("{readIops: 100, writeBytesPerSecond: 4Mi}").unwrap();
        assert_eq!(given.read_iops, Some(100));
        // The former spelling.
        let former = limits("{readIops: 100, writeBytesPerSecond: 4MiB}").unwrap();
        assert_eq!(former, given);
        assert_eq!(given.write_bytes, Some(4 << 20));
        assert_eq!((given.write_iops, given.read_bytes), (None, None));
        for (wrong, field) in [
            ("{readIops: 0}", "readIops"),
            ("{writeIops: 1}", "writeIops"),
            ("{writeBytesPerSecond: 1Ki}", "writeBytesPerSecond"),
            ("{readBytesPerSecond: much}", "readBytesPerSecond"),
            (
                "{readBytesPerSecond: 4MB}",
                "use one of Ki, Mi, Gi, Ti, Pi, Ei, k, M, G, T, P, E or none; did you mean 4M?",
            ),
            (
                "{readBytesPerSecond: 4194304}",
                "expected a size with its unit, such as 10Gi",
            ),
            ("{writeBytesPerSecond: 1Ki}", "at least 4Ki"),
            ("{iops: 5}", "iops"),
        ] {
            let error = format!("{:#}", limits(wrong).unwrap_err());
            assert!(error.contains(field), "{error}");
        }
    }
}
