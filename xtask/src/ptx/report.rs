//! Report of ptxas: registers and spilled bytes of each kernel.

/// Use of registers by a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelReport {
    pub(super) name: String,
    pub(super) registers: u32,
    /// Bytes of spill stores.
    pub(super) spill_bytes: u32,
    /// Bytes of static shared memory.
    pub(super) shared_bytes: u32,
}

/// Kernels of a log, in its order.
pub(super) fn kernels(log: &str) -> Vec<KernelReport> {
    let mut found: Vec<KernelReport> = Vec::new();
    for line in log.lines() {
        if let Some(rest) = line.split("Compiling entry function '").nth(1) {
            let name = rest.split('\'').next().unwrap_or_default().to_owned();
            found.push(KernelReport { name, registers: 0, spill_bytes: 0, shared_bytes: 0 });
        }
        let Some(kernel) = found.last_mut() else { continue };
        kernel.registers = kernel.registers.max(number_before(line, " registers"));
        kernel.spill_bytes = kernel.spill_bytes.max(number_before(line, " bytes spill stores"));
        kernel.shared_bytes = kernel.shared_bytes.max(number_before(line, " bytes smem"));
    }
    found
}

/// Lines of a log that a person has to read: those of the compiler, and advice of ptxas beside its figures.
pub(super) fn messages(log: &str) -> Vec<&str> {
    let is_figure = |line: &&str| {
        let info = line.starts_with("ptxas info");
        let figures = [
            ": Compiling entry",
            ": Function properties",
            ": Used ",
            " bytes gmem",
            ": Compile time",
        ];
        (info && figures.iter().any(|figure| line.contains(figure)))
            || line.contains(" bytes stack frame")
            || line.trim().is_empty()
    };
    log.lines().filter(|line| !is_figure(line)).collect()
}

/// The number that stands directly before `unit`; 0 if there is none.
fn number_before(line: &str, unit: &str) -> u32 {
    let Some((before, _)) = line.split_once(unit) else { return 0 };
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_kernels_are_read() {
        let log = "ptxas info    : 0 bytes gmem\n\
                   ptxas info    : Compiling entry function 'a' for 'sm_80'\n\
                   ptxas info    : Function properties for a\n    \
                   8 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads\n\
                   ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 4096 bytes smem\n\
                   ptxas info    : (C7510) Potential Performance Loss\n\
                   ptxas info    : Compiling entry function 'b' for 'sm_80'\n\
                   ptxas info    : Used 8 registers, used 0 barriers\n";
        let report = |name: &str, registers, spill_bytes, shared_bytes| KernelReport {
            name: name.to_owned(),
            registers,
            spill_bytes,
            shared_bytes,
        };
        assert_eq!(kernels(log), [report("a", 255, 24, 4096), report("b", 8, 0, 0)]);
        assert_eq!(messages(log), ["ptxas info    : (C7510) Potential Performance Loss"]);
    }
}
