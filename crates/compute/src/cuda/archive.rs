//! Kernels compiled ahead, by architecture. Written by `cargo xtask ptx`:
//!
//! ```text
//! archive = LZMA of: u32 n | n * (u8 length, name; u32 bytes) | modules
//! ```
//!
//! Numbers are little-endian. A module is a cubin, or PTX text for architectures without a cubin.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use lzma_rust2::LzmaReader;

use crate::{Error, Result, config};

/// Folder of compiled kernels in place of the embedded ones.
const CUBINS_VARIABLE: &str = "STONECHAT_CUDA_CUBINS";
/// Memory for unpacking in KiB.
const UNPACK_KIB: u32 = 128 << 10;

/// Compiled modules of one crate.
#[derive(Debug, Clone, Copy)]
pub struct Archive {
    /// Name of the crate.
    pub package: &'static str,
    /// Architecture, for example `sm_80`, and the modules. PTX comes last.
    pub targets: &'static [(Target, &'static [u8])],
}

/// Architecture of modules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Name, for example `sm_90a`.
    pub name: &'static str,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Devices that run it.
    pub reach: Reach,
}

/// Devices that run the code of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Devices of this capability alone.
    Same,
    /// Devices of the same major capability and of an equal or newer minor one.
    Minor,
    /// All newer devices: PTX, compiled by the driver.
    Newer,
}

impl Target {
    /// Whether a device of compute capability `device` runs this code.
    #[must_use]
    pub fn runs_on(&self, device: (u32, u32)) -> bool {
        match self.reach {
            Reach::Same => device == self.capability,
            Reach::Minor => device.0 == self.capability.0 && device.1 >= self.capability.1,
            Reach::Newer => device >= self.capability,
        }
    }
}

impl Archive {
    /// The first target that a device of compute capability `device` runs.
    #[must_use]
    pub fn target(&self, device: (u32, u32)) -> Option<Target> {
        self.targets.iter().map(|(target, _)| *target).find(|target| target.runs_on(device))
    }

    /// First target that `device` runs, with code for the capability `limited`, whose kernels it uses; PTX if there is
    /// none.
    #[must_use]
    pub fn limited_target(&self, device: (u32, u32), limited: (u32, u32)) -> Option<Target> {
        let mut all = self.targets.iter().map(|(target, _)| *target);
        let is_both = |target: &Target| target.runs_on(device) && target.runs_on(limited);
        let is_ptx = |target: &Target| target.reach == Reach::Newer && target.runs_on(device);
        all.clone().find(is_both).or_else(|| all.find(is_ptx))
    }

    /// The code of the modules of a target, by name, each followed by a NUL.
    ///
    /// # Errors
    /// [`Error::Config`] if `STONECHAT_CUDA_CUBINS` names no folder with the archive.
    ///
    /// # Panics
    /// If there is no such target or the archive is damaged.
    pub(super) fn modules(&self, target: Target) -> Result<HashMap<String, Vec<u8>>> {
        let (_, packed) =
            self.targets.iter().find(|(other, _)| *other == target).expect("a target");
        // Kernels in the making need no build of the crates.
        let read = |folder: String| {
            let path = Path::new(&folder).join(self.package).join(format!("{}.bin", target.name));
            std::fs::read(&path).map_err(|_| Error::Config {
                name: CUBINS_VARIABLE,
                expected: format!("a folder with {}/{}.bin", self.package, target.name),
                got: folder,
            })
        };
        let file = config::variable(CUBINS_VARIABLE).map(read).transpose()?;
        let packed = file.as_deref().unwrap_or(packed);
        let mut reader = LzmaReader::new_mem_limit(packed, UNPACK_KIB, None).expect("an archive");
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).expect("an archive");
        let mut rest = &bytes[..];
        let n = read_u32(&mut rest);
        let mut entries = Vec::new();
        for _ in 0..n {
            let len = rest[0].into();
            let name = String::from_utf8(rest[1..=len].to_vec()).expect("a name");
            rest = &rest[1 + len..];
            entries.push((name, read_u32(&mut rest)));
        }
        let modules = entries.into_iter().map(|(name, len)| {
            let (code, others) = rest.split_at(len);
            rest = others;
            (name, [code, &[0]].concat())
        });
        Ok(modules.collect())
    }
}

fn read_u32(rest: &mut &[u8]) -> usize {
    let (number, others) = rest.split_first_chunk().expect("four bytes");
    *rest = others;
    u32::from_le_bytes(*number) as usize
}

/// The archives of the calling crate, from its folder `src/cuda/cubins`.
#[macro_export]
macro_rules! cuda_archive {
    () => {
        $crate::cuda::Archive {
            package: env!("CARGO_PKG_NAME"),
            targets: &[
                $crate::cuda_archive!("sm_75", (7, 5), Minor),
                $crate::cuda_archive!("sm_80", (8, 0), Minor),
                $crate::cuda_archive!("sm_90a", (9, 0), Same),
                $crate::cuda_archive!("sm_100", (10, 0), Minor),
                $crate::cuda_archive!("sm_120", (12, 0), Minor),
                $crate::cuda_archive!("compute_80", (8, 0), Newer),
            ],
        }
    };
    ($name:literal, $capability:expr, $reach:ident) => {
        (
            $crate::cuda::Target {
                name: $name,
                capability: $capability,
                reach: $crate::cuda::Reach::$reach,
            },
            include_bytes!(concat!("cuda/cubins/", $name, ".bin")),
        )
    };
}

#[cfg(test)]
mod tests {
    use super::{Reach, Target};

    #[test]
    fn code_runs_on_its_own_and_newer_devices() {
        let target = |capability, reach| Target { name: "", capability, reach };
        let ampere = target((8, 0), Reach::Minor);
        assert!(ampere.runs_on((8, 0)) && ampere.runs_on((8, 9)) && !ampere.runs_on((9, 0)));
        let hopper = target((9, 0), Reach::Same);
        assert!(hopper.runs_on((9, 0)) && !hopper.runs_on((9, 1)) && !hopper.runs_on((10, 0)));
        let ptx = target((8, 0), Reach::Newer);
        assert!(ptx.runs_on((9, 1)) && ptx.runs_on((12, 1)) && !ptx.runs_on((7, 5)));
    }
}
