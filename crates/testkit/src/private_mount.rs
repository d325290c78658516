use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Run with the directory to show and the program with its arguments. What stands in `/run` otherwise is not there, and
/// nothing is made in the file system that others see.
const SCRIPT: &str = r#"
set -e
account=/var/run/secrets/kubernetes.io/serviceaccount
mount -t tmpfs none /run
mkdir -p "$account"
mount --bind "$0" "$account"
exec "$@"
"#;

/// The ways to have mounts of one's own: as root, and as anybody where user namespaces are allowed.
const WAYS: [&[&str]; 2] = [&["--mount"], &["--map-root-user", "--mount"]];

/// Starts programs that find a directory where pods have the files of their service account, which nobody else sees.
#[derive(Clone, Copy, Debug)]
pub struct PrivateMount {
    way: &'static [&'static str],
}

impl PrivateMount {
    /// None where the system allows nobody to have mounts of their own, as in most containers.
    pub fn find() -> Option<Self> {
        let ways = WAYS.into_iter().map(|way| Self { way });
        ways.into_iter().find(|mount| {
            let mut command = mount.command(&std::env::temp_dir(), OsStr::new("true"));
            let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
            status.is_ok_and(|status| status.success())
        })
    }

    /// `program` with the files of `account`; it runs in the process that is started.
    pub(crate) fn command(self, account: &Path, program: &OsStr) -> Command {
        let mut command = Command::new("unshare");
        command.args(self.way).args(["--", "sh", "-c", SCRIPT]).arg(account).arg(program);
        command
    }
}
