//! The caller, as the stock provisioner is one: repeats a request until its answer is final, and writes what it is told.

use crate::rules::{Binding, Property, Protocol};
use crate::state::{Caller, Code, Front, Node, Progress, Request, Run, Sidecar, State, Verb};
use crate::steps::Steps;

/// What a front says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// What the agent said.
    Of(Code),
    /// `RESOURCE_EXHAUSTED`, for the call is withdrawn.
    Withdrawn,
    /// `RESOURCE_EXHAUSTED`, for there is no such Node.
    NodeGone,
}

impl Steps<'_> {
    /// What the sidecar may do.
    pub(crate) fn sidecar(&mut self) {
        let api = &self.state.api;
        let idle = (0..self.state.fronts.len())
            .find(|index| self.state.front(*index).progress == Progress::Idle);
        let continues = self.state.sidecar == Sidecar::Continues;
        if let Some(index) = idle.filter(|_| !self.state.somebody_waits()) {
            let ask = |request, progress| Front {
                request: Some(request),
                progress,
                caller: Caller::Waits,
            };
            match (api.claim, api.bound) {
                (arguments, None) if arguments.is_some() || continues => {
                    let selected =
                        (self.protocol.binding != Binding::Immediate).then_some(api.selected);
                    let request = Request {
                        verb: Verb::Create,
                        node: selected,
                        arguments: arguments.unwrap_or_default(),
                    };
                    self.step("the sidecar calls CreateVolume", selected, |_, state| {
                        state.sidecar = Sidecar::Continues;
                        *state.front_mut(index) = ask(request, Progress::Create(None));
                    });
                }
                (None, Some(node)) if !api.is_gone(node) => {
                    let request = Request {
                        verb: Verb::Delete,
                        node: Some(node),
                        arguments: 0,
                    };
                    self.step("the sidecar calls DeleteVolume", Some(node), |_, state| {
                        state.sidecar = Sidecar::Idle;
                        *state.front_mut(index) = ask(request, Progress::Create(None));
                    });
                }
                _ => {}
            }
        }
        if self.state.left.sidecar_restarts > 0 {
            self.fault("the sidecar is killed", None, |_, state| {
                state.left.sidecar_restarts -= 1;
                state.sidecar = Sidecar::Idle;
                for front in state
                    .fronts
                    .iter_mut()
                    .filter(|front| front.caller == Caller::Waits)
                {
                    *front = Front::default();
                }
            });
        }
    }
}

impl State {
    /// What the sidecar makes of an answer, and whether that was true.
    pub(crate) fn receive(
        &mut self,
        protocol: &Protocol,
        (request, node): (Request, Node),
        answer: Answer,
    ) {
        let disk = *self.disks.at(node);
        match (request.verb, answer) {
            (Verb::Create, Answer::Of(Code::Ok)) => {
                let meant = request.node.is_none_or(|wanted| wanted == node);
                // That of a claim that is gone may have been deleted by the audit meanwhile: nobody can use it any more.
                let is_audited = disk.is_none() && self.api.claim.is_none();
                if !meant || (disk != Some(request.arguments) && !is_audited) {
                    self.violate(protocol, Property::TrueAnswers);
                }
                self.sidecar = Sidecar::Idle;
                self.api.bound.get_or_insert(node);
            }
            (Verb::Create, Answer::Of(Code::NoRoom) | Answer::Withdrawn | Answer::NodeGone) => {
                let runs = matches!(
                    self.agents.at(node).runs.of(Verb::Create),
                    Run::Running(_) | Run::Ended(_, Code::Ok)
                );
                // Of a claim that is gone nobody goes elsewhere; what is left of it, the audit removes.
                if answer != Answer::NodeGone
                    && self.api.claim.is_some()
                    && (disk.is_some() || runs)
                {
                    self.violate(protocol, Property::TrueAnswers);
                }
                self.sidecar = Sidecar::Idle;
                if protocol.binding == Binding::Delayed && request.node == Some(self.api.selected) {
                    self.api.selected = self.api.selected.other();
                }
            }
            (Verb::Create, Answer::Of(Code::AlreadyExists)) => self.sidecar = Sidecar::Idle,
            (Verb::Delete, Answer::Of(Code::Ok)) => {
                if disk.is_some() {
                    self.violate(protocol, Property::TrueAnswers);
                }
                if self.api.claim.is_none() && self.api.bound == Some(node) {
                    self.api.bound = None;
                }
            }
            (_, Answer::Of(Code::Aborted)) | (Verb::Delete, _) => {}
        }
    }
}
