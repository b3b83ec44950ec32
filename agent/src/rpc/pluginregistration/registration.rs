//! `pluginregistration.Registration`: who the driver is, and what came of its registration.
//!
//! **Invariant:** neither method waits for anything: kubelet gives `GetInfo` one second.

use drumlin_proto::pluginregistration::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
    registration_server::Registration,
};
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::{Front, Progress};
use crate::rpc::respond::answer;

#[tonic::async_trait]
impl Registration for Front {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        answer("pluginregistration.Registration/GetInfo", "", async {
            self.progress.send_replace(Progress::Asked(Instant::now()));
            Ok(self.info.clone())
        })
        .await
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus {
            plugin_registered,
            error,
        } = request.into_inner();
        answer(
            "pluginregistration.Registration/NotifyRegistrationStatus",
            "",
            async {
                self.progress.send_replace(if plugin_registered {
                    Progress::Registered
                } else {
                    Progress::Refused(error)
                });
                Ok(RegistrationStatusResponse {})
            },
        )
        .await
    }
}
