//! Properties of kernels, read from their compiled code: cubins (ELF) and PTX.

/// Shared memory that the driver keeps for a block, which cubins from capability 9.0 on count as memory of the kernel.
const RESERVED_SHARED_BYTES: usize = 1024;
/// Attribute of a kernel with the most threads of a block, and the format of attributes with a size.
const MAX_THREADS: u8 = 5;
const SIZED: u8 = 4;

/// A kernel in compiled code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelCode {
    /// Shared memory beside the dynamic one.
    pub(super) shared_bytes: usize,
    /// Maximum threads of a block.
    pub(super) max_threads: usize,
}

/// The kernel `name` of a module for a capability; `None` if the module has none of this name.
pub(super) fn kernel(code: &[u8], name: &str, capability: (u32, u32)) -> Option<KernelCode> {
    if code.starts_with(b"\x7fELF") {
        let mut kernel = of_cubin(code, name)?;
        if capability >= (9, 0) {
            kernel.shared_bytes = kernel.shared_bytes.saturating_sub(RESERVED_SHARED_BYTES);
        }
        Some(kernel)
    } else {
        of_ptx(std::str::from_utf8(code).ok()?, name)
    }
}

/// Little-endian number of `N` bytes at `at`.
fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(N)?)?;
    Some(bytes.iter().rev().fold(0, |all, &byte| all << 8 | usize::from(byte)))
}

fn of_cubin(code: &[u8], name: &str) -> Option<KernelCode> {
    let table = number::<8>(code, 0x28)?;
    let (entry_bytes, n) = (number::<2>(code, 0x3a)?, number::<2>(code, 0x3c)?);
    let section = |i: usize| table + i * entry_bytes;
    let names = number::<8>(code, section(number::<2>(code, 0x3e)?) + 24)?;
    let find = |prefix: &str| {
        (0..n).map(section).find(|&at| {
            let text = number::<4>(code, at).and_then(|offset| code.get(names + offset..));
            let rest = text.and_then(|text| text.strip_prefix(prefix.as_bytes()));
            let rest = rest.and_then(|rest| rest.strip_prefix(name.as_bytes()));
            rest.is_some_and(|rest| rest.first() == Some(&0))
        })
    };
    find(".text.")?;
    let shared = find(".nv.shared.").and_then(|at| number::<8>(code, at + 32)).unwrap_or(0);
    let info = find(".nv.info.")?;
    let (first, len) = (number::<8>(code, info + 24)?, number::<8>(code, info + 32)?);
    let max_threads = max_threads(code.get(first..first + len)?)?;
    Some(KernelCode { shared_bytes: shared, max_threads })
}

/// Product of the three sizes of [`MAX_THREADS`] among the attributes of a kernel.
fn max_threads(mut info: &[u8]) -> Option<usize> {
    while info.len() >= 4 {
        let len = if info[0] == SIZED { number::<2>(info, 2)? } else { 0 };
        if info[..2] == [SIZED, MAX_THREADS] {
            let sizes = [4, 8, 12].map(|at| number::<4>(info, at));
            return sizes.into_iter().try_fold(1, |all, size| Some(all * size?));
        }
        info = info.get(4 + len..)?;
    }
    None
}

fn of_ptx(text: &str, name: &str) -> Option<KernelCode> {
    let (mut shared_bytes, mut max_threads, mut entry) = (0, None, None);
    for line in text.lines().map(str::trim) {
        if let Some((_, rest)) = line.split_once(".entry ") {
            entry = rest.split('(').next();
        }
        let is_of_kernel = entry == Some(name);
        if line.starts_with(".shared") && (entry.is_none() || is_of_kernel) {
            let size = line.split_once('[').and_then(|(_, rest)| rest.split(']').next());
            // A variable that is no array has at most 8 bytes.
            shared_bytes += size.map_or(8, |size| size.parse().unwrap_or(0));
        }
        if is_of_kernel && let Some(sizes) = line.strip_prefix(".maxntid") {
            let sizes = sizes.split(',').map(|size| size.trim().parse::<usize>().ok());
            max_threads = sizes.into_iter().try_fold(1, |all, size| Some(all * size?));
        }
    }
    Some(KernelCode { shared_bytes, max_threads: max_threads? })
}

#[cfg(test)]
mod tests {
    use super::{KernelCode, kernel};

    #[test]
    fn ptx_tells_threads_and_shared_memory() {
        let text = "
            .shared .align 4 .b8 codebook[1024];
            .extern .shared .align 16 .b8 shared[];
            .visible .entry gemm(
            .maxntid 256, 1, 1
            .visible .entry gemv(
            .maxntid 512, 1, 1
                .shared .align 8 .b8 rows[512];
        ";
        let find = |name| kernel(text.as_bytes(), name, (8, 0));
        assert_eq!(find("gemm"), Some(KernelCode { shared_bytes: 1024, max_threads: 256 }));
        assert_eq!(find("gemv"), Some(KernelCode { shared_bytes: 1536, max_threads: 512 }));
        assert_eq!(find("gem"), None);
    }
}
