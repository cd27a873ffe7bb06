//! Settings of the process that libraries read: variables, and parameters of the allocator.

/// Turns off Mesa's Vulkan layer that orders GPUs by the Wayland compositor: on a machine without one it prints errors to
/// the terminal, and `--device` orders them anyway. `main` calls this before it does anything else.
pub(super) fn silence_drivers() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}

/// Bounds the memory that glibc's allocator keeps of what was freed, which grows for hours in a server whose threads come and go:
/// the arenas, of which it has up to eight for each processor, and the size of a block inside them. A larger block is a mapping of
/// its own, and goes back when it is freed; by default that size grows to 32 MiB with the blocks that are freed. `main` calls this
/// before any thread starts.
pub(super) fn bound_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        use nix::libc::{M_ARENA_MAX, M_MMAP_THRESHOLD, mallopt};
        for (variable, parameter, value) in [
            ("MALLOC_ARENA_MAX", M_ARENA_MAX, 4),
            ("MALLOC_MMAP_THRESHOLD_", M_MMAP_THRESHOLD, 1 << 20),
        ] {
            // The user's variable counts.
            if std::env::var_os(variable).is_none() {
                // SAFETY: the parameter is one of glibc's, and no other thread allocates yet.
                unsafe { mallopt(parameter, value) };
            }
        }
    }
}
