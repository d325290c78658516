use std::path::PathBuf;

/// Where the endpoints of the pool come from when it is not Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discovery {
    File(FileDiscovery),
}

/// Endpoints listed in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDiscovery {
    pub path: PathBuf,
    /// Follow changes of the file; otherwise it is read once.
    pub watch: bool,
}
