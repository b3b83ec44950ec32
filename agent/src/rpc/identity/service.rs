//! `identity.Identity`: name, capabilities beyond CSI, and readiness of the driver.

use std::collections::BTreeMap;

use drumlin_proto::identity;
use tonic::{Request, Response, Status};

use super::{Front, capabilities};
use crate::{
    VERSION,
    rpc::respond::{answer, answer_quietly},
};

#[tonic::async_trait]
impl identity::identity_server::Identity for Front {
    async fn get_identity(
        &self,
        _: Request<identity::GetIdentityRequest>,
    ) -> Result<Response<identity::GetIdentityResponse>, Status> {
        answer("identity.Identity/GetIdentity", "", async {
            Ok(identity::GetIdentityResponse {
                name: self.driver.to_string(),
                vendor_version: VERSION.to_owned(),
                manifest: BTreeMap::new(),
            })
        })
        .await
    }

    async fn get_capabilities(
        &self,
        _: Request<identity::GetCapabilitiesRequest>,
    ) -> Result<Response<identity::GetCapabilitiesResponse>, Status> {
        answer("identity.Identity/GetCapabilities", "", async {
            let policy = self.operations.settings().on_group_delete;
            Ok(identity::GetCapabilitiesResponse {
                capabilities: capabilities::all(policy),
            })
        })
        .await
    }

    async fn probe(
        &self,
        _: Request<identity::ProbeRequest>,
    ) -> Result<Response<identity::ProbeResponse>, Status> {
        answer_quietly("identity.Identity/Probe", async {
            self.operations.probe().await?;
            Ok(identity::ProbeResponse { ready: Some(true) })
        })
        .await
    }
}
