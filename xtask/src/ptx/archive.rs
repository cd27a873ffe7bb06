//! Archives of compiled modules, in the format of `crates/compute/src/cuda/archive.rs`.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context, Result};
use lzma_rust2::{LzmaOptions, LzmaReader, LzmaWriter};

/// Code of modules by name.
pub(super) type Modules = BTreeMap<String, Vec<u8>>;

/// Level of compression; its dictionary is larger than an archive.
const LEVEL: u32 = 9;
/// First bytes of machine code.
const ELF: &[u8] = b"\x7fELF";
/// Memory for unpacking in KiB.
const UNPACK_KIB: u32 = 128 << 10;

/// Bytes of an archive, modules sorted by name.
pub(super) fn pack(modules: &Modules) -> Result<Vec<u8>> {
    let mut bytes = u32::try_from(modules.len())?.to_le_bytes().to_vec();
    for (name, code) in modules {
        bytes.push(u8::try_from(name.len()).with_context(|| format!("{name} is too long"))?);
        bytes.extend(name.as_bytes());
        bytes.extend(u32::try_from(code.len())?.to_le_bytes());
    }
    modules.values().for_each(|code| bytes.extend(code));
    let mut options = LzmaOptions::with_preset(LEVEL);
    options.nice_len = LzmaOptions::NICE_LEN_MAX;
    // Machine code is words of 16 bytes; PTX is text.
    if modules.values().any(|code| code.starts_with(ELF)) {
        (options.lc, options.lp, options.pb) = (0, 4, 4);
    }
    let size = Some(bytes.len() as u64);
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, size)?;
    writer.write_all(&bytes)?;
    Ok(writer.finish()?)
}

/// Modules of an archive.
pub(super) fn unpack(archive: &[u8]) -> Result<Modules> {
    let mut bytes = Vec::new();
    LzmaReader::new_mem_limit(archive, UNPACK_KIB, None)?.read_to_end(&mut bytes)?;
    let mut rest = &bytes[..];
    let n = read_u32(&mut rest)?;
    let mut headers = Vec::new();
    for _ in 0..n {
        let len = read(&mut rest, 1)?[0];
        let name = String::from_utf8(read(&mut rest, len.into())?.to_vec())?;
        headers.push((name, read_u32(&mut rest)?));
    }
    let module = |(name, len)| Ok((name, read(&mut rest, len)?.to_vec()));
    headers.into_iter().map(module).collect()
}

fn read_u32(rest: &mut &[u8]) -> Result<usize> {
    Ok(u32::from_le_bytes(read(rest, 4)?.try_into()?) as usize)
}

fn read<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    rest.split_off(..len).context("an archive ends early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_read_as_they_were_written() {
        let modules = Modules::from([("b".to_owned(), vec![1; 900]), ("a".to_owned(), vec![])]);
        let archive = pack(&modules).unwrap();
        assert_eq!(unpack(&archive).unwrap(), modules);
        assert!(unpack(&archive[..archive.len() - 1]).is_err());
        assert!(unpack(&pack(&Modules::new()).unwrap()).unwrap().is_empty());
    }
}
