//! `csi.Identity`: supported versions and name of the plugin.

use std::collections::BTreeMap;

use drumlin_proto::csi::v0_1;
use tonic::{Request, Response, Status};

use super::{Front, version};
use crate::{VERSION, rpc::respond::answer};

#[tonic::async_trait]
impl v0_1::identity_server::Identity for Front {
    async fn get_supported_versions(
        &self,
        _: Request<v0_1::GetSupportedVersionsRequest>,
    ) -> Result<Response<v0_1::GetSupportedVersionsResponse>, Status> {
        answer("csi.Identity/GetSupportedVersions", "", async {
            Ok(v0_1::GetSupportedVersionsResponse {
                supported_versions: version::SUPPORTED.to_vec(),
            })
        })
        .await
    }

    async fn get_plugin_info(
        &self,
        request: Request<v0_1::GetPluginInfoRequest>,
    ) -> Result<Response<v0_1::GetPluginInfoResponse>, Status> {
        answer("csi.Identity/GetPluginInfo", "", async {
            version::check(request.into_inner().version.as_ref())?;
            Ok(v0_1::GetPluginInfoResponse {
                name: self.driver.to_string(),
                vendor_version: VERSION.to_owned(),
                manifest: BTreeMap::new(),
            })
        })
        .await
    }
}
