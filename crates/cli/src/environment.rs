//! Variables that libraries read.

/// Turns off Mesa's Vulkan layer that orders GPUs by the Wayland compositor: on a machine without one it prints errors to
/// the terminal, and `--device` orders them anyway. `main` calls this before it does anything else.
pub(super) fn silence_drivers() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet that could read the environment.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
