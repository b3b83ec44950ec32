//! Writes the Helm chart from manifests/base and its components: they are the one source of both.
//!
//!   chart DIRECTORY    writes the chart there
//!
//! A component is a part of each template it patches, on a condition; what an installation may choose is a value.
#![allow(clippy::print_stderr, reason = "it is a program for a terminal")]
#![expect(
    clippy::format_push_string,
    reason = "a chart is written once: what is allocated for it costs nothing"
)]

mod emit;
mod manifests;
mod node;
mod patch;
mod values;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use manifests::{Document, Manifests};
use node::{Member, Node};
use values::{OF_BASE, Setting};

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [directory] = &arguments[..] else {
        eprintln!("chart DIRECTORY");
        return ExitCode::from(2);
    };
    match chart().and_then(|files| write(directory, &files)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chart: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The files of the chart by their names.
type Files = BTreeMap<String, String>;

/// Replaces what is in a directory by the files of the chart.
fn write(directory: &Path, files: &Files) -> Result<(), String> {
    let because = |error: std::io::Error| format!("{}: {error}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(because)?;
    }
    for (name, text) in files {
        let path = directory.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(because)?;
        }
        fs::write(path, text).map_err(because)?;
    }
    Ok(())
}

/// The chart.
fn chart() -> Result<Files, String> {
    let mut manifests = Manifests::read()?;
    let settings = values::all(take_values(&mut manifests)?);
    manifests.apply_components()?;
    let mut files = Files::new();
    for (file, documents) in &manifests.files {
        let name = format!("templates/{file}");
        files.insert(name, text_of(documents)?);
    }
    files.insert("Chart.yaml".to_owned(), about());
    files.insert("values.yaml".to_owned(), values::text(&settings));
    files.insert("values.schema.json".to_owned(), values::schema(&settings));
    Ok(files)
}

fn about() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "# Written by tests/src/bin/chart, as all of this chart is.\napiVersion: v2\nname: drumlin\ndescription: CSI driver for local volumes on LVM or in image files\ntype: application\nversion: {version}\nappVersion: {version}\nkubeVersion: \">=1.34.0-0\"\n"
    )
}

/// The template of the documents of a file.
fn text_of(documents: &[Document]) -> Result<String, String> {
    let mut text = String::new();
    let when = documents.first().and_then(|one| one.when.as_deref());
    for document in documents {
        if !text.is_empty() {
            text.push_str("---\n");
        }
        text.push_str(&document.head);
        let emitted = emit::document(&document.node);
        text.push_str(&emitted.map_err(|error| format!("{}: {error}", document.head))?);
    }
    Ok(emit::conditional(when, &text))
}

/// Puts the values of the chart into the base; returns those whose defaults the base has.
fn take_values(manifests: &mut Manifests) -> Result<Vec<Setting>, String> {
    let mut settings = Vec::new();
    for (object, path, value, help) in OF_BASE {
        let missing = || format!("{object} has no {path}");
        let default = manifests.values.get(&(object.to_owned(), path.to_owned()));
        let default = default.ok_or_else(missing)?.clone();
        let node = manifests.document(object)?.node.at(path);
        let node = node.ok_or_else(missing)?;
        *node = match node {
            Node::Scalar(_) => Node::Scalar(format!("{{{{ .Values.{value} }}}}")),
            _ => Node::Value(value.to_owned()),
        };
        settings.push(Setting {
            path: value,
            help,
            default,
        });
    }
    for object in ["DaemonSet/drumlin-agent", "Deployment/drumlin-controller"] {
        let document = manifests.document(object)?;
        let pod = document
            .node
            .at("spec/template/spec")
            .and_then(Node::members);
        let secrets = Node::Value("imagePullSecrets".to_owned());
        let secrets = Member::new("imagePullSecrets", secrets).when("imagePullSecrets");
        pod.ok_or("a workload without pods")?.push(secrets);
        let image = document.node.at("spec/template/spec/containers/0/image");
        *image.ok_or("a container without an image")? = Node::Scalar(
            "\"{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}\""
                .to_owned(),
        );
    }
    for (file, documents) in &mut manifests.files {
        if file.starts_with("crds/") {
            for document in documents {
                document.when = Some("crds".to_owned());
                document.keep()?;
            }
        }
    }
    Ok(settings)
}
