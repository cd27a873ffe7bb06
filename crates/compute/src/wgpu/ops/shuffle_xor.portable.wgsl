// Shuffles within a workgroup, through workgroup memory.

var<workgroup> exchanged: array<vec4<u32>, WG>;

// Workgroup memory reaches every invocation.
fn shuffle_scope(lid: u32) -> u32 {
    return 0u;
}

// Value of the invocation lid ^ mask, mask a power of two; in uniform control flow.
fn shuffle_xor(v: vec4<u32>, mask: u32, scope: u32, lid: u32) -> vec4<u32> {
    // Reads of the last call are done.
    workgroupBarrier();
    exchanged[lid] = v;
    workgroupBarrier();
    return exchanged[lid ^ mask];
}
