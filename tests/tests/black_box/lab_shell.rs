//! The shell beside an agent that developers have (`tests/lab/shell`), as it is called by who has no terminal.

use std::{fs, path::PathBuf};

use drumlin_tests::{
    programs::{drumlin, program, within, workspace},
    storage::{attached_images_below, mounts_below},
};

/// What is done beside the agent: a volume is asked for and mounted, and used by its path.
const COMMAND: &str = r#"
home=$(dirname "$MANIFESTS")
cat > "$MANIFESTS/v.yaml" << END
apiVersion: drumlin.dev/v1alpha1
kind: Volume
metadata: {name: v}
spec: {capacity: 32Mi, mount: {path: $home/mnt}}
END
for _ in $(seq 300); do
    drumlin status | grep -q Published && break
    sleep 0.1
done
drumlin status
touch "$home/mnt/file" && echo "at $home"
# There is nothing to read, and nothing to wait for.
cat
exit 7
"#;

/// The arguments of each process that has this text among them or in its environment.
fn processes_that_name(text: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let of = |path: PathBuf, file: &str| {
        let said = fs::read(path.join(file)).unwrap_or_default();
        String::from_utf8_lossy(&said).replace('\0', " ")
    };
    let said = processes.map(|process| ["cmdline", "environ"].map(|file| of(process.path(), file)));
    let naming = said.filter(|said| said.iter().any(|said| said.contains(text)));
    naming.map(|[arguments, _]| arguments).collect()
}

#[test]
fn a_command_beside_an_agent_needs_no_terminal_and_leaves_nothing() {
    // In a session of its own there is no terminal. It ends well before what waits for the tests.
    let shell = workspace().join("tests/lab/shell");
    let ran = within(120, "setsid")
        .args(["--wait", "bash", "-c"])
        // Not even an input.
        .arg(r#"exec "$@" <&-"#)
        .arg("bash")
        .arg(shell)
        .args(["directory", "bash", "-c", COMMAND])
        .env("DRUMLIN_BIN", drumlin())
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert_eq!(ran.status.code(), Some(7), "{out}{err}");
    assert!(out.contains("32Mi at "), "{out}{err}");
    let at = out.lines().find_map(|line| line.strip_prefix("at "));
    let at = at.unwrap_or_else(|| panic!("{out}{err}"));
    assert!(
        err.contains(&format!("  MANIFESTS={at}/manifests\n")),
        "{err}"
    );
    let running = processes_that_name(at);
    assert!(running.is_empty(), "{running:#?}");
    assert_eq!(mounts_below(at), [""; 0]);
    assert_eq!(attached_images_below(at), [""; 0]);
    assert!(!fs::exists(at).unwrap(), "{at} is left");
}

#[test]
fn without_a_terminal_and_a_command_there_is_no_shell() {
    let shell = workspace().join("tests/lab/shell");
    let ran = program(shell)
        .arg("directory")
        .env("DRUMLIN_BIN", drumlin())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
}
