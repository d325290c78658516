use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sluice_config::{BuildContext, BuildError, FileReport, Plugin, Roles, Stability};
use sluice_data::{Discovery, FileDiscovery};

/// Takes the endpoints of the pool from a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileDiscoveryPlugin;

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FileDiscoveryParams {
    /// A relative path starts at the working directory of the process.
    path: PathBuf,
    /// Follow changes of the file.
    #[serde(default)]
    watch_file: bool,
}

impl Plugin for FileDiscoveryPlugin {
    const TYPE: &'static str = "file-discovery";
    const STABILITY: Stability = Stability::Beta;
    type Params = FileDiscoveryParams;

    fn build(params: Self::Params, cx: &mut BuildContext<'_>) -> Result<Roles, BuildError> {
        let FileDiscoveryParams { path, watch_file } = params;
        if path.as_os_str().is_empty() {
            return Err(BuildError::new("path", "the path of the endpoint file is empty"));
        }
        let discovery = FileDiscovery { path, watch: watch_file };
        let file = discovery.clone();
        cx.reads_file("path", move || match file.check() {
            Ok(warnings) => {
                FileReport { warnings: warnings.iter().map(ToString::to_string).collect(), ..FileReport::default() }
            }
            Err(error) => FileReport::of(Err(error)),
        });
        Ok(Roles::discovery(Discovery::File(discovery)))
    }
}
