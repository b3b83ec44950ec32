//! `drumlin ping`: checks that an agent responds, and with `--ready` that its classes can be used.

use std::time::Duration;

use anyhow::{Context, bail};
use drumlin_proto::{
    Endpoint,
    csi::v1::{GetPluginInfoRequest, ProbeRequest, identity_client::IdentityClient},
};
use tonic::Status;

use super::print::print;
use crate::{
    cli::PingArguments,
    config::{ENDPOINT, configured_endpoint},
};

/// Timeout of the calls. Probes of kubelet wait a few seconds longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes one `GetPluginInfo` call, with `--ready` after one `Probe`, and prints the answer.
pub(crate) async fn run(arguments: PingArguments) -> anyhow::Result<()> {
    let configured = match (&arguments.endpoint, &arguments.config) {
        (None, Some(config)) => configured_endpoint(config)?,
        _ => None,
    };
    let endpoint = arguments.endpoint.or(configured);
    let endpoint = endpoint.as_deref().unwrap_or(ENDPOINT);
    let endpoint: Endpoint = endpoint.parse().context("endpoint")?;
    let mut client = IdentityClient::new(drumlin_proto::connect(endpoint.path())?);
    let asked = async {
        if arguments.ready {
            let probed = client.probe(ProbeRequest {}).await?.into_inner();
            // CSI: an answer without the field means ready.
            if probed.ready == Some(false) {
                return Ok(None);
            }
        }
        let info = client.get_plugin_info(GetPluginInfoRequest {}).await?;
        Ok::<_, Status>(Some(info.into_inner()))
    };
    let Ok(answer) = tokio::time::timeout(PATIENCE, asked).await else {
        bail!("{endpoint}: no answer within {} s", PATIENCE.as_secs());
    };
    match answer {
        Ok(Some(info)) => {
            print(&format!("{} {}\n", info.name, info.vendor_version));
            Ok(())
        }
        Ok(None) => bail!("{endpoint}: not ready yet"),
        Err(status) => bail!("{endpoint}: {}", status.message()),
    }
}
