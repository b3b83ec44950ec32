//! `drumlin ping`: checks that an agent responds.

use std::time::Duration;

use anyhow::{Context, bail};
use drumlin_proto::{
    Endpoint,
    csi::v1::{GetPluginInfoRequest, identity_client::IdentityClient},
};

use super::print::print;
use crate::cli::PingArguments;

/// Timeout of the call.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes one `GetPluginInfo` call and prints the answer.
pub(crate) async fn run(arguments: PingArguments) -> anyhow::Result<()> {
    let endpoint: Endpoint = arguments.endpoint.parse().context("endpoint")?;
    let mut client = IdentityClient::new(drumlin_proto::connect(endpoint.path())?);
    let asked = client.get_plugin_info(GetPluginInfoRequest {});
    let Ok(answer) = tokio::time::timeout(PATIENCE, asked).await else {
        bail!("{endpoint}: no answer within {} s", PATIENCE.as_secs());
    };
    match answer {
        Ok(info) => {
            let info = info.into_inner();
            print(&format!("{} {}\n", info.name, info.vendor_version));
            Ok(())
        }
        Err(status) => bail!("{endpoint}: {}", status.message()),
    }
}
