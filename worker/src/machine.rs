//! What this machine has: memory, disk, processor features.

use std::path::Path;

use serde::Serialize;

use crate::error::WorkerError;

/// Free disk that is never used up, bytes.
pub const DISK_MARGIN: u64 = 256 << 20;
/// Below this much memory no hop of any parameter set runs, bytes.
pub const LEAST_MEMORY: u64 = 128 << 20;

/// Memory figures, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Installed, or the control group's limit if that is lower.
    pub total: u64,
    /// Usable now without swapping.
    pub available: u64,
}

/// Memory left to the rest of the machine, bytes.
const MEMORY_MARGIN: u64 = 256 << 20;

/// Reads /proc/meminfo and the control groups' limits.
pub fn memory() -> Memory {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let mut memory = Memory {
        total: meminfo_field(&meminfo, "MemTotal:").unwrap_or(0),
        available: meminfo_field(&meminfo, "MemAvailable:").unwrap_or(0),
    };
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    for (limit, used) in group_limits(Path::new("/sys/fs/cgroup"), &groups) {
        memory.total = memory.total.min(limit);
        memory.available = memory.available.min(limit.saturating_sub(used));
    }
    memory
}

/// Bytes a computation may use: what is available less a margin, and no more than `most` if a person set it.
pub fn memory_for_work(most: Option<u64>) -> u64 {
    let free = memory().available.saturating_sub(MEMORY_MARGIN);
    most.map_or(free, |most| most.min(free))
}

/// Limit and use of the memory of this process's control group and of those above it, in both versions of control
/// groups. Files in memory that can be dropped do not count as used.
fn group_limits(root: &Path, groups: &str) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next(), fields.next(), fields.next());
        let (Some(controllers), Some(path)) = (controllers, path) else {
            continue;
        };
        let (top, limit, used, dropped) = if controllers.is_empty() {
            (
                root.to_path_buf(),
                "memory.max",
                "memory.current",
                "inactive_file ",
            )
        } else if controllers.split(',').any(|c| c == "memory") {
            let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
            (root.join("memory"), limit, used, "total_inactive_file ")
        } else {
            continue;
        };
        let own = top.join(path.trim_start_matches('/'));
        for group in own.ancestors().take_while(|g| g.starts_with(&top)) {
            let number = |name: &str| {
                let text = std::fs::read_to_string(group.join(name)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            if let Some(limit) = number(limit) {
                let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
                let dropped = stat.lines().find_map(|l| l.strip_prefix(dropped));
                let dropped = dropped.and_then(|n| n.trim().parse().ok()).unwrap_or(0);
                found.push((limit, number(used).unwrap_or(0).saturating_sub(dropped)));
            }
        }
    }
    found
}

/// Most memory this process has had, bytes; 0 where the system does not say.
pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    meminfo_field(&status, "VmHWM:").unwrap_or(0)
}

fn meminfo_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes a normal user may still write to the file system of `path`.
pub fn free_disk(path: &Path) -> Result<u64, WorkerError> {
    fs4::available_space(path).map_err(WorkerError::file(path))
}

/// Refuses when fewer than `needed` bytes plus the margin are free.
pub fn check_disk(path: &Path, needed: u64) -> Result<(), WorkerError> {
    let free = free_disk(path)?;
    if free < needed.saturating_add(DISK_MARGIN) {
        return Err(WorkerError::Resources(format!(
            "{} of disk are free at {}, {} are needed",
            crate::units::bytes(free),
            path.display(),
            crate::units::bytes(needed.saturating_add(DISK_MARGIN))
        )));
    }
    Ok(())
}

/// Refuses when hardly any memory is left.
pub fn check_memory() -> Result<(), WorkerError> {
    let memory = memory();
    if memory.available < LEAST_MEMORY {
        return Err(WorkerError::Resources(format!(
            "{} of memory are available, at least {} are needed",
            crate::units::bytes(memory.available),
            crate::units::bytes(LEAST_MEMORY)
        )));
    }
    Ok(())
}

/// Threads to use unless told otherwise.
pub fn threads() -> usize {
    std::thread::available_parallelism()
        .map(usize::from)
        .unwrap_or(1)
}

/// The processor's name.
pub fn cpu() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line
        .and_then(|line| line.split_once(':'))
        .map(|(_, name)| name.trim());
    name.unwrap_or("unknown").to_owned()
}

/// Features that matter to the engine, present on this machine.
pub fn features() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let all = [
            ("sse4.2", std::arch::is_x86_feature_detected!("sse4.2")),
            ("avx2", std::arch::is_x86_feature_detected!("avx2")),
            ("fma", std::arch::is_x86_feature_detected!("fma")),
            ("sha", std::arch::is_x86_feature_detected!("sha")),
            ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
            ("avx512dq", std::arch::is_x86_feature_detected!("avx512dq")),
            (
                "avx512ifma",
                std::arch::is_x86_feature_detected!("avx512ifma"),
            ),
        ];
        all.iter()
            .filter(|(_, present)| *present)
            .map(|(name, _)| *name)
            .collect()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        Vec::new()
    }
}

/// Architecture and best vector unit in a word, for the coordinator.
pub fn isa() -> String {
    let best = ["avx512ifma", "avx512f", "avx2"]
        .into_iter()
        .find(|name| features().contains(name));
    match best {
        Some(name) => format!("{}+{name}", std::env::consts::ARCH),
        None => std::env::consts::ARCH.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_fields_are_read_in_bytes_and_nonsense_is_not() {
        let text = "MemTotal:       24639372 kB\nMemAvailable:   23000000 kB\nX: z kB\n";
        assert_eq!(meminfo_field(text, "MemTotal:"), Some(24_639_372 * 1024));
        assert_eq!(meminfo_field(text, "X:"), None);
        assert_eq!(meminfo_field(text, "Swap:"), None);
    }

    #[test]
    fn the_limits_of_all_control_groups_above_count_without_droppable_files() {
        let dir = tempfile::tempdir().unwrap();
        let group = |path: &str, max: &str, current: &str, stat: &str| {
            let at = dir.path().join(path);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("memory.max"), max).unwrap();
            std::fs::write(at.join("memory.current"), current).unwrap();
            std::fs::write(at.join("memory.stat"), stat).unwrap();
        };
        group("a", "1000\n", "700\n", "anon 5\ninactive_file 200\n");
        group("a/b", "max\n", "600\n", "");
        let limits = |groups: &str| group_limits(dir.path(), groups);
        assert_eq!(limits("0::/a/b\n"), vec![(1000, 500)]);
        assert_eq!(limits("0::/\n"), vec![]);
        assert_eq!(limits("1:cpu:/a\nnonsense\n0::/../../etc\n"), vec![]);
        let old = dir.path().join("memory/x");
        std::fs::create_dir_all(&old).unwrap();
        std::fs::write(old.join("memory.limit_in_bytes"), "50").unwrap();
        std::fs::write(old.join("memory.usage_in_bytes"), "20").unwrap();
        assert_eq!(limits("4:cpu,memory:/x\n"), vec![(50, 20)]);
    }

    #[test]
    fn a_chosen_limit_only_lowers_what_is_available() {
        assert_eq!(memory_for_work(Some(5)), 5);
        assert!(memory_for_work(Some(u64::MAX)) <= memory().available);
        assert!(memory_for_work(None) > 0);
    }

    #[test]
    fn more_disk_than_exists_is_refused() {
        assert!(check_disk(Path::new("/tmp"), u64::MAX / 2).is_err());
        assert!(check_disk(Path::new("/tmp"), 1).is_ok());
    }
}
