//! `csi.v1.Identity`: name, capabilities and readiness of the plugin.

use std::collections::BTreeMap;

use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities};
use crate::{
    VERSION,
    rpc::respond::{answer, answer_quietly},
};

/// The response to `GetPluginInfo` of a plugin with this name.
pub(in crate::rpc) fn plugin_info(driver: &str) -> v1::GetPluginInfoResponse {
    v1::GetPluginInfoResponse {
        name: driver.to_owned(),
        vendor_version: VERSION.to_owned(),
        manifest: BTreeMap::new(),
    }
}

#[tonic::async_trait]
impl v1::identity_server::Identity for Front {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        answer("csi.v1.Identity/GetPluginInfo", "", async {
            Ok(plugin_info(&self.driver))
        })
        .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        answer("csi.v1.Identity/GetPluginCapabilities", "", async {
            Ok(v1::GetPluginCapabilitiesResponse {
                capabilities: capabilities::plugin(),
            })
        })
        .await
    }

    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        answer_quietly("csi.v1.Identity/Probe", async {
            self.operations.probe().await?;
            Ok(v1::ProbeResponse { ready: Some(true) })
        })
        .await
    }
}
