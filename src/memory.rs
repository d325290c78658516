//! How much memory the process may use, as the kernel's control groups say.

use std::fs;
use std::path::{Path, PathBuf};

/// Where no group sets a limit.
const DEFAULT_BODY_MEMORY: u64 = 1 << 30;
/// Version 1 writes "no limit" as the largest multiple of a page.
const UNLIMITED: u64 = 1 << 60;

/// Bytes of request bodies that may be held before admission: as configured, or a quarter of what the process may use.
pub(crate) fn body_memory(configured: u64) -> u64 {
    match configured {
        0 => limit(Path::new("/")).map_or(DEFAULT_BODY_MEMORY, |limit| limit / 4),
        bytes => bytes,
    }
}

/// The lowest limit of the groups that the process is in, of either version; `root` is where the file system begins.
fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(Group::of_line).filter_map(|group| group.limit(root)).min()
}

/// A control group that may limit memory.
struct Group<'a> {
    mount: &'static str,
    file: &'static str,
    /// Below `mount`, without a leading slash.
    path: &'a Path,
}

impl<'a> Group<'a> {
    /// A line of `/proc/self/cgroup`: number, controllers, path. Version 2 has one without controllers.
    fn of_line(line: &'a str) -> Option<Self> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let path = Path::new(path.trim_start_matches('/'));
        if controllers.is_empty() {
            Some(Self { mount: "sys/fs/cgroup", file: "memory.max", path })
        } else if controllers.split(',').any(|controller| controller == "memory") {
            Some(Self { mount: "sys/fs/cgroup/memory", file: "memory.limit_in_bytes", path })
        } else {
            None
        }
    }

    /// Every group above counts as well. In a container the mount may begin at the process's own group: then the path
    /// leads nowhere, and the mount itself has the limit.
    fn limit(&self, root: &Path) -> Option<u64> {
        let mount = root.join(self.mount);
        let files = self.path.ancestors().map(|path| mount.join(path).join(self.file));
        files.filter_map(read_limit).min()
    }
}

fn read_limit(file: PathBuf) -> Option<u64> {
    // Version 2 writes "no limit" as `max`.
    fs::read_to_string(file).ok()?.trim().parse().ok().filter(|limit| *limit < UNLIMITED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read from these files.
    fn limit_of(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        limit(root.path())
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let group = ("proc/self/cgroup", "0::/kubepods.slice/pod1/epp\n");
        let container = ("sys/fs/cgroup/kubepods.slice/pod1/epp/memory.max", "2147483648\n");
        let pod = ("sys/fs/cgroup/kubepods.slice/pod1/memory.max", "1073741824\n");
        let node = ("sys/fs/cgroup/kubepods.slice/memory.max", "max\n");
        assert_eq!(limit_of(&[group, container, pod, node]), Some(1 << 30));
        assert_eq!(limit_of(&[group, container, node]), Some(2 << 30));
        assert_eq!(limit_of(&[group, node]), None);
    }

    #[test]
    fn a_container_may_see_its_own_group_as_the_root() {
        let limit = ("sys/fs/cgroup/memory.max", "536870912\n");
        assert_eq!(limit_of(&[("proc/self/cgroup", "0::/\n"), limit]), Some(512 << 20));
        assert_eq!(limit_of(&[("proc/self/cgroup", "0::/../outside\n"), limit]), Some(512 << 20));
    }

    #[test]
    fn version_1_is_read_too() {
        let groups = ("proc/self/cgroup", "4:cpu,cpuacct:/docker/1\n3:memory:/docker/1\n1:name=systemd:/docker/1\n");
        let own = ("sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "1073741824\n");
        let no_limit = ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limit_of(&[groups, own, no_limit]), Some(1 << 30));
        assert_eq!(limit_of(&[groups, no_limit]), None);
    }

    #[test]
    fn without_control_groups_there_is_no_limit() {
        assert_eq!(limit_of(&[]), None);
        assert_eq!(limit_of(&[("proc/self/cgroup", "nonsense\n0::/x\n"), ("sys/fs/cgroup/memory.max", "?")]), None);
    }

    #[test]
    fn what_is_configured_wins() {
        assert_eq!(body_memory(4096), 4096);
        assert!(body_memory(0) > 0);
    }
}
