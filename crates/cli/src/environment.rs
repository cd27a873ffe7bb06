//! Settings of the process that libraries read: variables, and parameters of the allocator.

/// Turns off Mesa's Vulkan layer that orders GPUs by the Wayland compositor: on a machine without one it prints errors to
/// the terminal, and `--device` orders them anyway. `main` calls this before it does anything else.
pub(super) fn silence_drivers() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Maximum arenas of glibc's allocator.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAX_ARENAS: i32 = 4;

/// Bounds the arenas of glibc's allocator. It has up to eight for each processor, and each keeps what was freed in it: requests
/// of a server, whose threads come and go, fill all of them. `main` calls this before any thread starts.
pub(super) fn bound_arenas() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use nix::libc::{M_ARENA_MAX, mallopt};
        // The user's variable counts.
        if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
            // SAFETY: the parameter is one of glibc's, and no other thread allocates yet.
            unsafe { mallopt(M_ARENA_MAX, MAX_ARENAS) };
        }
    }
}
