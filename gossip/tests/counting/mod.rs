//! An allocator that counts what the current thread allocates.
#![expect(
    unsafe_code,
    reason = "a global allocator cannot be written without it"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

/// What a piece of code allocated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Calls that allocated or grew.
    pub(crate) calls: usize,
    /// The most bytes held at once, beyond those held before.
    pub(crate) peak_bytes: isize,
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    static CALLS: Cell<usize> = const { Cell::new(0) };
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn held(calls: usize, change: isize) {
    CALLS.set(CALLS.get() + calls);
    HELD.set(HELD.get() + change);
    PEAK.set(PEAK.get().max(HELD.get()));
}

// SAFETY: passes every call on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        held(1, layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        held(0, -(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        held(1, size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Runs `code` and counts what it allocates on this thread.
pub(crate) fn count<T>(code: impl FnOnce() -> T) -> (T, Counts) {
    let (calls, before) = (CALLS.get(), HELD.get());
    PEAK.set(before);
    let result = code();
    (
        result,
        Counts {
            calls: CALLS.get() - calls,
            peak_bytes: PEAK.get() - before,
        },
    )
}
