//! Description of the machine of a run.

use std::fs;
use std::process::Command;

use stonechat_benches::report::Machine;

use crate::shell;

/// Smallest buffer whose reading counts as reading memory.
const MIN_READ_BYTES: u64 = 256 << 20;

/// Looks at this machine. Where the system does not tell, fields are empty.
#[must_use]
pub fn detect(cores: usize) -> Machine {
    let cpuinfo = read("/proc/cpuinfo");
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let cpu =
        field("model name").or_else(mac_cpu).or_else(|| std::env::var("PROCESSOR_IDENTIFIER").ok());
    Machine {
        cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        cores,
        memory_bytes: memory_bytes("MemTotal:"),
        caches: caches(),
        page_bytes: said_by("getconf", &["PAGESIZE"]).parse().unwrap_or(0),
        huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
        governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").trim().to_owned(),
        virtual_machine: field("flags").map(|flags| flags.split(' ').any(|f| f == "hypervisor")),
        system: format!(
            "{} {} {}",
            std::env::consts::OS,
            read("/proc/sys/kernel/osrelease").trim(),
            std::env::consts::ARCH
        ),
        load_before: load(),
        load_after: None,
    }
}

/// Processes that were ready to run, averaged over a minute.
#[must_use]
pub fn load() -> Option<f64> {
    read("/proc/loadavg").split(' ').next()?.parse().ok()
}

/// Bytes to read for the memory peak: many times the caches, but no large part of the memory.
#[must_use]
pub fn peak_bytes() -> usize {
    let kib = |size: &str| size.strip_suffix('K')?.parse::<u64>().ok();
    let largest = caches().iter().filter_map(|cache| kib(cache.rsplit(' ').next()?)).max();
    let wanted = (largest.unwrap_or(0) * 1024 * 16).max(MIN_READ_BYTES);
    let available = memory_bytes("MemAvailable:");
    let bytes = if available > 0 { wanted.min(available / 4) } else { wanted };
    usize::try_from(bytes).unwrap_or(MIN_READ_BYTES as usize)
}

/// One line for each thing worth knowing.
#[must_use]
pub fn describe(machine: &Machine) -> String {
    let gib = machine.memory_bytes as f64 / f64::from(1 << 30);
    let or_unknown = |text: &str| if text.is_empty() { "unknown" } else { text }.to_owned();
    let kind = match machine.virtual_machine {
        Some(true) => ", virtual machine",
        Some(false) | None => "",
    };
    let load =
        machine.load_before.map_or_else(|| "unknown".to_owned(), |load| format!("{load:.2}"));
    format!(
        "{}, {} cores, {gib:.0} GiB{kind}; {}\n{}; pages of {} bytes, huge pages: {}; governor: {}; load: {load}",
        machine.cpu,
        machine.cores,
        machine.caches.join(", "),
        machine.system.trim(),
        machine.page_bytes,
        or_unknown(&machine.huge_pages),
        or_unknown(&machine.governor),
    )
}

fn caches() -> Vec<String> {
    let folder = "/sys/devices/system/cpu/cpu0/cache";
    let of = |index: usize| {
        let field = |name: &str| read(&format!("{folder}/index{index}/{name}")).trim().to_owned();
        let (level, kind, size) = (field("level"), field("type"), field("size"));
        let letter = match kind.as_str() {
            "Data" => "d",
            "Instruction" => "i",
            _ => "",
        };
        (!size.is_empty()).then(|| format!("L{level}{letter} {size}"))
    };
    (0..8).filter_map(of).collect()
}

fn memory_bytes(field: &str) -> u64 {
    let meminfo = read("/proc/meminfo");
    let kib = meminfo.lines().find_map(|line| line.strip_prefix(field));
    let kib = kib.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    match kib {
        Some(kib) => kib * 1024,
        None => said_by("sysctl", &["-n", "hw.memsize"]).parse().unwrap_or(0),
    }
}

fn mac_cpu() -> Option<String> {
    let name = said_by("sysctl", &["-n", "machdep.cpu.brand_string"]);
    (!name.is_empty()).then_some(name)
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> String {
    let inside = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or_else(String::new, |(word, _)| word.to_owned())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// Standard output of a program, empty if it is absent.
fn said_by(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    shell::output(command.args(args)).map_or_else(|_| String::new(), |out| out.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_word_is_found() {
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "");
    }

    #[test]
    fn this_machine_has_a_name_and_room_for_peaks() {
        let machine = detect(2);
        assert!(!machine.cpu.is_empty());
        assert!(describe(&machine).contains(&machine.cpu));
        assert!(peak_bytes() > 0);
    }
}
