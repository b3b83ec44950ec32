//! `csi.v0.Identity`: name, capabilities and readiness of the plugin.

use std::collections::BTreeMap;

use drumlin_proto::csi::v0;
use tonic::{Request, Response, Status};

use super::{Front, capabilities};
use crate::{
    VERSION,
    rpc::respond::{answer, answer_quietly},
};

#[tonic::async_trait]
impl v0::identity_server::Identity for Front {
    async fn get_plugin_info(
        &self,
        _: Request<v0::GetPluginInfoRequest>,
    ) -> Result<Response<v0::GetPluginInfoResponse>, Status> {
        answer("csi.v0.Identity/GetPluginInfo", "", async {
            Ok(v0::GetPluginInfoResponse {
                name: self.driver.to_string(),
                vendor_version: VERSION.to_owned(),
                manifest: BTreeMap::new(),
            })
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v0::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v0::GetPluginCapabilitiesResponse>, Status> {
        answer("csi.v0.Identity/GetPluginCapabilities", "", async {
            Ok(v0::GetPluginCapabilitiesResponse {
                capabilities: capabilities::plugin(),
            })
        })
        .await
    }

    async fn probe(
        &self,
        _: Request<v0::ProbeRequest>,
    ) -> Result<Response<v0::ProbeResponse>, Status> {
        answer_quietly("csi.v0.Identity/Probe", async {
            self.operations.probe().await?;
            Ok(v0::ProbeResponse { ready: Some(true) })
        })
        .await
    }
}
