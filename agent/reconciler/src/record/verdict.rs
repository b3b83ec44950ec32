//! What a pass says of an object: its conditions, and the events that their changes are.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use serde::{Deserialize, Serialize};

use super::{Record, now};

/// Number of events that a record keeps.
const EVENTS: usize = 10;

/// A transition of an object: its `Ready` condition has another reason or message than before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Event {
    /// When it was last seen, in RFC 3339.
    pub(crate) time: String,
    /// The reason of the condition.
    pub(crate) reason: String,
    /// The last message of the condition with this reason.
    pub(crate) message: String,
    /// How many messages with this reason came one after the other.
    pub(crate) count: u32,
}

/// The verdict of a pass, from which the conditions are set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) state: State,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

/// The state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The object is as its manifest requests.
    Ready,
    /// The object is being reconciled, or will be retried.
    Reconciling,
    /// The object cannot become ready without a change; a person must act.
    Stalled,
    /// The object is deleted or released, as requested.
    Gone,
}

impl Record {
    /// Sets the `Drifted` condition, or removes it if there is no drift.
    pub(crate) fn drift(&mut self, message: Option<String>) {
        let generation = self.generation();
        let verdict = Verdict {
            state: State::Ready,
            reason: "Drifted",
            message: message.clone().unwrap_or_default(),
        };
        let (_, conditions) = self.body.kind_mut().status_mut().seen_mut();
        let status = message.map(|_| "True");
        set(conditions, "Drifted", status, &verdict, generation);
    }

    /// Sets the conditions from a verdict; returns true if anything changed.
    pub(crate) fn judge(&mut self, verdict: &Verdict) -> bool {
        let before = self.clone();
        let generation = self.generation();
        let (observed, conditions) = self.body.kind_mut().status_mut().seen_mut();
        *observed = generation;
        judge(conditions, verdict, generation);
        self.note_event(verdict);
        *self != before
    }

    /// Notes a verdict as an event, if it differs from the last one.
    pub(crate) fn note_event(&mut self, verdict: &Verdict) {
        let events = &mut self.drumlin.events;
        let mut count = 1;
        if let Some(last) = events.last()
            && last.reason == verdict.reason
        {
            if last.message == verdict.message {
                return;
            }
            count += last.count;
            events.pop();
        }
        events.push(Event {
            time: now(),
            reason: verdict.reason.to_owned(),
            message: verdict.message.clone(),
            count,
        });
        let surplus = events.len().saturating_sub(EVENTS);
        events.drain(..surplus);
    }
}

/// Sets the conditions from a verdict.
pub(crate) fn judge(conditions: &mut Vec<Condition>, verdict: &Verdict, generation: i64) {
    let ready = match verdict.state {
        State::Ready => "True",
        _ => "False",
    };
    set(conditions, "Ready", Some(ready), verdict, generation);
    for (kind, state) in [
        ("Reconciling", State::Reconciling),
        ("Stalled", State::Stalled),
    ] {
        let holds = (verdict.state == state).then_some("True");
        set(conditions, kind, holds, verdict, generation);
    }
}

/// Sets a condition, or removes it; its time changes only with its status.
fn set(
    conditions: &mut Vec<Condition>,
    kind: &str,
    status: Option<&str>,
    verdict: &Verdict,
    generation: i64,
) {
    let Some(status) = status else {
        conditions.retain(|condition| condition.type_ != kind);
        return;
    };
    let old = conditions
        .iter_mut()
        .find(|condition| condition.type_ == kind);
    if let Some(old) = old {
        if old.status != status {
            old.last_transition_time = Time(Timestamp::now());
            status.clone_into(&mut old.status);
        }
        verdict.reason.clone_into(&mut old.reason);
        old.message.clone_from(&verdict.message);
        old.observed_generation = Some(generation);
        return;
    }
    conditions.push(Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.to_owned(),
        message: verdict.message.clone(),
        last_transition_time: Time(Timestamp::now()),
        observed_generation: Some(generation),
    });
}

#[cfg(test)]
mod tests {
    use drumlin_crd::read;

    use super::*;

    #[test]
    fn the_last_ten_transitions_are_kept_and_messages_of_one_reason_are_counted() {
        let text = "apiVersion: drumlin.dev/v1alpha1\nkind: Volume\nmetadata: {name: a}\nspec: {capacity: 1Gi}\n";
        let object = read(text).unwrap().documents.remove(0).object;
        let mut record = Record::new(&object, "a.yaml", 1);
        let mut judge = |reason: &'static str, message: &str| {
            record.judge(&Verdict {
                state: State::Reconciling,
                reason,
                message: message.to_owned(),
            });
            let last = record.drumlin.events.last().unwrap();
            (record.drumlin.events.len(), last.count)
        };
        assert_eq!(judge("Creating", "10 %"), (1, 1));
        assert_eq!(judge("Creating", "10 %"), (1, 1));
        assert_eq!(judge("Creating", "20 %"), (1, 2));
        for turn in 0..9 {
            judge(["Created", "Published"][turn % 2], "");
        }
        assert_eq!(judge("Drifted", ""), (10, 1));
        assert_eq!(record.drumlin.events[0].reason, "Created");
    }
}
