//! System V semaphores: the cookies of udev.

use std::io;

use libc::c_int;

/// Creates the semaphore with this key; `EEXIST` when it exists.
pub(crate) fn new_semaphore(key: i32) -> io::Result<c_int> {
    const FLAGS: c_int = libc::IPC_CREAT | libc::IPC_EXCL | 0o600;
    // SAFETY: semget(2) takes numbers only.
    nix::errno::Errno::result(unsafe { libc::semget(key, 1, FLAGS) }).map_err(io::Error::from)
}

/// Returns the value of a semaphore, after setting it if a value is given.
pub(crate) fn semaphore(id: c_int, value: Option<c_int>) -> io::Result<c_int> {
    let result = match value {
        // SAFETY: SETVAL takes a number.
        Some(value) => unsafe { libc::semctl(id, 0, libc::SETVAL, value) },
        // SAFETY: GETVAL takes nothing.
        None => unsafe { libc::semctl(id, 0, libc::GETVAL) },
    };
    nix::errno::Errno::result(result).map_err(io::Error::from)
}

/// Number of processes that wait until a semaphore is zero.
pub(crate) fn waiting_for_zero(id: c_int) -> io::Result<c_int> {
    // SAFETY: GETZCNT takes nothing.
    let result = unsafe { libc::semctl(id, 0, libc::GETZCNT) };
    nix::errno::Errno::result(result).map_err(io::Error::from)
}

/// The process that changed a semaphore last; zero if it belongs to another process namespace.
pub(crate) fn last_user(id: c_int) -> io::Result<c_int> {
    // SAFETY: GETPID takes nothing.
    let result = unsafe { libc::semctl(id, 0, libc::GETPID) };
    nix::errno::Errno::result(result).map_err(io::Error::from)
}

/// Removes a semaphore.
pub(crate) fn remove_semaphore(id: c_int) -> io::Result<()> {
    // SAFETY: IPC_RMID takes nothing.
    let result = unsafe { libc::semctl(id, 0, libc::IPC_RMID) };
    nix::errno::Errno::result(result)?;
    Ok(())
}
