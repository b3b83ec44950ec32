//! `csi.v1.Identity` of the front.

use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities};
use crate::rpc::{csi_v1::identity::plugin_info, respond::answer};

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
        answer("csi.v1.Identity/Probe", "", async {
            Ok(v1::ProbeResponse {
                ready: Some(self.cluster.is_ready()),
            })
        })
        .await
    }
}
