//! A key that the agent gets from systemd: a file in the directory of its credentials.

use std::fs;

use drumlin_tests::{
    agent::{Agent, Options},
    requests::{create, mounted, raw, stage, unstage},
    storage::Scratch,
};
use tonic::Code;

use super::setup::{mappings, opens};
use crate::{
    helpers::{ok, paths, refused},
    place::Place,
    trash::{content, used},
};

const KEY: &str = ", encryption: {type: luks2, key: {credential: disk-key}}";

/// What systemd starts an agent with that has credentials in this directory.
fn with_credentials(agent: &Scratch, directory: &str) -> Options {
    let directory = agent.directory(directory);
    let directory = directory.to_string_lossy().into_owned();
    Options {
        environment: vec![("CREDENTIALS_DIRECTORY".to_owned(), directory)],
        ..Options::default()
    }
}

/// Why a volume cannot be staged.
async fn refuses_to_stage(agent: &Agent, id: &str) -> String {
    let (staging, _) = paths(agent, "v");
    let mut node = agent.node();
    let request = stage(id, &staging, &mounted("ext4"));
    let answer = node.node_stage_volume(request).await;
    let why = refused(answer, Code::FailedPrecondition);
    ok(node.node_unstage_volume(unstage(id, &staging)).await);
    why
}

#[tokio::test]
async fn a_key_is_the_credential_of_its_name_and_nothing_opens_without_it() {
    let place = Place::Lvm;
    let scratch = Scratch::new();
    let with_key = with_credentials(&scratch, "credentials");
    let key = scratch.key("credentials/disk-key");
    let options = Options {
        config: Some(place.config(&scratch, KEY)),
        ..with_key.clone()
    };
    let mut agent = Agent::with(scratch, options).await;
    let id = used(&agent, "v", b"sealed").await;
    assert!(opens(&place.below(&agent, &id), &key));

    // Without LoadCredential=, and with that of another one.
    let without = "CREDENTIALS_DIRECTORY is not set";
    let other = with_credentials(&agent.scratch, "others");
    for (options, why) in [(Options::default(), without), (other, "No such file")] {
        agent.kill();
        agent.restart_with(options).await;
        let staged = refuses_to_stage(&agent, &id).await;
        let mut controller = agent.controller();
        let answer = controller.create_volume(create("w", 16, &raw())).await;
        let created = refused(answer, Code::FailedPrecondition);
        for told in [staged, created, agent.log()] {
            for word in [
                "default",
                "could not get the key of credential disk-key",
                why,
            ] {
                assert!(told.contains(word), "{word}: {told}");
            }
        }
        assert_eq!(mappings(), [""; 0]);
    }
    agent.kill();
    agent.restart_with(with_key).await;
    assert_eq!(content(&agent, "v", &id).await, b"sealed");
    // It is read anew each time.
    fs::rename(&key, agent.path("taken-away")).unwrap();
    refuses_to_stage(&agent, &id).await;
    fs::rename(agent.path("taken-away"), &key).unwrap();
    assert_eq!(content(&agent, "v", &id).await, b"sealed");
}
