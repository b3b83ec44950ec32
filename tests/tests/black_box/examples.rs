//! The examples do what they say.

use std::{fs, path::PathBuf};

use drumlin_tests::{
    agent::{eventually, write},
    programs::workspace,
};

use crate::{helpers::text, host::Host};

/// Every example, as it is but for where it is mounted.
#[tokio::test]
async fn every_example_becomes_ready() {
    let examples = workspace().join("examples");
    let mut directories = vec![examples.join("quickstart")];
    for entry in fs::read_dir(examples.join("features"))
        .into_iter()
        .flatten()
    {
        directories.push(entry.unwrap().path());
    }
    assert!(directories.len() > 10, "{directories:?}");
    for example in directories {
        let host = Host::start().await;
        let files: Vec<PathBuf> = if example.is_dir() {
            fs::read_dir(&example)
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect()
        } else {
            vec![example.clone()]
        };
        let mut objects = 0;
        for file in files {
            let manifest = fs::read_to_string(&file)
                .unwrap()
                .replace("/mnt/", &format!("{}/", text(host.agent.path("mnt"))));
            objects += manifest.matches("apiVersion: drumlin.dev").count();
            write(&host.manifests.join(file.file_name().unwrap()), &manifest);
        }
        let done = |(table, code): &(String, i32)| *code == 0 && table.lines().count() > objects;
        let (table, _) = eventually(|| host.agent.status(), done).await;
        assert!(objects > 0, "{example:?}\n{table}");
    }
}
