//! `csi.v1.Identity`: who the plugin is, what it can do, whether it can do it now.

use std::collections::BTreeMap;

use drumlin_proto::csi::v1;
use tonic::{Request, Response, Status};

use super::{Front, capabilities};
use crate::rpc::status::status;

#[tonic::async_trait]
impl v1::identity_server::Identity for Front {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.driver.to_string(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            manifest: BTreeMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<v1::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<v1::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(v1::GetPluginCapabilitiesResponse {
            capabilities: capabilities::plugin(),
        }))
    }

    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        self.operations
            .probe()
            .await
            .map_err(|error| status(&error))?;
        Ok(Response::new(v1::ProbeResponse { ready: Some(true) }))
    }
}
