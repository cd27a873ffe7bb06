//! NVRTC, NVIDIA's run-time compiler of CUDA C++, through its C interface.
#![expect(unsafe_code, reason = "a C library that is opened at run time")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

use anyhow::{Context, Result, ensure};
use libloading::Library;

type Program = *mut c_void;
type Status = c_int;
type Size = unsafe extern "C" fn(Program, *mut usize) -> Status;
type Fill = unsafe extern "C" fn(Program, *mut c_char) -> Status;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Status;

/// Status of a program with errors, which its log explains.
const COMPILATION_FAILED: Status = 6;

/// The open library. NVRTC compiles on any number of threads.
#[derive(Debug)]
pub(super) struct Nvrtc {
    create: Create,
    destroy: unsafe extern "C" fn(*mut Program) -> Status,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> Status,
    error_text: unsafe extern "C" fn(Status) -> *const c_char,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> Status,
    cubin: (Size, Fill),
    ptx: (Size, Fill),
    log: (Size, Fill),
    /// Keeps the functions in memory.
    _library: Library,
}

/// Result of a compilation.
#[derive(Debug)]
pub(super) struct Compiled {
    /// Cubin or PTX text; [`None`] for a program with errors.
    pub(super) code: Option<Vec<u8>>,
    /// Messages of the compiler and of ptxas.
    pub(super) log: String,
}

impl Nvrtc {
    /// Opens a library of CUDA 12 or newer.
    pub(super) fn open(path: &Path) -> Result<Self> {
        // SAFETY: the wheel of NVIDIA; its initializers only set up the compiler.
        let library = unsafe { Library::new(path) };
        let library = library.with_context(|| format!("cannot open {}", path.display()))?;
        // SAFETY: names and signatures are those of `nvrtc.h`.
        unsafe {
            Ok(Self {
                create: symbol(&library, "nvrtcCreateProgram")?,
                destroy: symbol(&library, "nvrtcDestroyProgram")?,
                compile: symbol(&library, "nvrtcCompileProgram")?,
                error_text: symbol(&library, "nvrtcGetErrorString")?,
                version: symbol(&library, "nvrtcVersion")?,
                cubin: getter(&library, "nvrtcGetCUBINSize", "nvrtcGetCUBIN")?,
                ptx: getter(&library, "nvrtcGetPTXSize", "nvrtcGetPTX")?,
                log: getter(&library, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?,
                _library: library,
            })
        }
    }

    /// Major and minor version.
    pub(super) fn version(&self) -> Result<(i32, i32)> {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes both numbers.
        self.check(unsafe { (self.version)(&raw mut major, &raw mut minor) })?;
        Ok((major, minor))
    }

    /// Compiles `source`; `name` stands in messages. The architecture among `options` decides between a cubin (`sm_`) and PTX
    /// (`compute_`).
    pub(super) fn compile(&self, name: &str, source: &str, options: &[String]) -> Result<Compiled> {
        let is_ptx = options.iter().any(|option| option.contains("=compute_"));
        let (name, source) = (CString::new(name)?, CString::new(source)?);
        let options = options.iter().map(|option| CString::new(option.as_str()));
        let options: Vec<CString> = options.collect::<Result<_, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        let (source, name) = (source.as_ptr(), name.as_ptr());
        // SAFETY: both texts end with a NUL and are copied; there are no headers in memory.
        let created =
            unsafe { (self.create)(&raw mut program, source, name, 0, ptr::null(), ptr::null()) };
        self.check(created)?;
        // SAFETY: the program exists; the options end with a NUL and live until the call returns.
        let status = unsafe { (self.compile)(program, pointers.len() as c_int, pointers.as_ptr()) };
        let log = self.read(program, self.log);
        let code = match status {
            0 => self.read(program, if is_ptx { self.ptx } else { self.cubin }).map(Some),
            COMPILATION_FAILED => Ok(None),
            _ => self.check(status).map(|()| None),
        };
        // SAFETY: the program exists and is not used again.
        self.check(unsafe { (self.destroy)(&raw mut program) })?;
        let mut code = code?;
        if is_ptx && let Some(text) = &mut code {
            text.pop_if(|last| *last == 0);
        }
        let log = String::from_utf8_lossy(&log?).trim_end_matches('\0').to_owned();
        Ok(Compiled { code, log })
    }

    /// Reads one of the results of a program.
    fn read(&self, program: Program, (size, fill): (Size, Fill)) -> Result<Vec<u8>> {
        let mut len = 0;
        // SAFETY: the program exists; writes the length.
        self.check(unsafe { size(program, &raw mut len) })?;
        let mut bytes = vec![0u8; len];
        // SAFETY: writes `len` bytes.
        self.check(unsafe { fill(program, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }

    fn check(&self, status: Status) -> Result<()> {
        // SAFETY: returns a constant text with a NUL for any status.
        let text = unsafe { CStr::from_ptr((self.error_text)(status)) };
        ensure!(status == 0, "NVRTC: {}", text.to_string_lossy());
        Ok(())
    }
}

/// A function of the library.
///
/// # Safety
/// `T` is the type of the function.
unsafe fn symbol<T: Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<T>(name) };
    Ok(*found.with_context(|| format!("libnvrtc has no `{name}`"))?)
}

/// The functions for length and bytes of a result.
///
/// # Safety
/// The functions have these types.
unsafe fn getter(library: &Library, size: &str, fill: &str) -> Result<(Size, Fill)> {
    // SAFETY: the caller's promise, for both.
    unsafe { Ok((symbol(library, size)?, symbol(library, fill)?)) }
}
