//! What the services share, and their registration.

use std::{sync::Arc, time::Duration};

use drumlin_proto::csi::v1;
use tonic::{Request, service::Routes};

/// Time that a caller gives who names none.
const PATIENCE: Duration = Duration::from_mins(1);

/// State shared by the services.
#[derive(Debug, Clone)]
pub(crate) struct Front {
    pub(super) cluster: Arc<drumlin_cluster::Front>,
    pub(super) driver: Arc<str>,
}

impl Front {
    /// The services of a cluster, with driver name `driver`.
    pub(crate) fn new(cluster: Arc<drumlin_cluster::Front>, driver: &str) -> Self {
        Self {
            cluster,
            driver: driver.into(),
        }
    }

    /// Adds the services.
    pub(crate) fn register(self, routes: Routes) -> Routes {
        routes
            .add_service(v1::identity_server::IdentityServer::new(self.clone()))
            .add_service(v1::controller_server::ControllerServer::new(self.clone()))
            .add_service(v1::group_controller_server::GroupControllerServer::new(
                self,
            ))
    }
}

/// The time that the caller gives for the answer.
pub(super) fn patience<T>(request: &Request<T>) -> Duration {
    let header = request.metadata().get("grpc-timeout");
    let header = header.and_then(|value| value.to_str().ok());
    header.and_then(parsed).unwrap_or(PATIENCE)
}

/// The time of a `grpc-timeout`: at most eight digits, and a unit.
fn parsed(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok().filter(|_| number.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number.saturating_mul(3600))),
        "M" => Some(Duration::from_secs(number.saturating_mul(60))),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_caller_is_read_as_grpc_writes_it() {
        for (text, seconds) in [
            ("10S", 10.0),
            ("59999m", 59.999),
            ("1M", 60.0),
            ("1H", 3600.0),
        ] {
            assert_eq!(parsed(text).map(|time| time.as_secs_f64()), Some(seconds));
        }
        for bad in ["", "S", "10", "-1S", "10X", "123456789S", "1ä"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
        let mut request = Request::new(());
        assert_eq!(patience(&request), PATIENCE);
        request
            .metadata_mut()
            .insert("grpc-timeout", "15S".parse().unwrap());
        assert_eq!(patience(&request), Duration::from_secs(15));
    }
}
