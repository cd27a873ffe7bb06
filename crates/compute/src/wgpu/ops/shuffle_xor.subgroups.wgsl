// Shuffles within a workgroup, by subgroup operations where both invocations are in one subgroup.

var<workgroup> exchanged: array<vec4<u32>, WG>;

var<workgroup> subgroups: u32;

// Number of subgroups, as a value that browsers know to be uniform; in uniform control flow.
fn shuffle_scope(lid: u32) -> u32 {
    if lid == 0u {
        subgroups = subgroup.count;
    }
    return workgroupUniformLoad(&subgroups);
}

// Value of the invocation lid ^ mask, mask a power of two; `scope` is that of `shuffle_scope`. In uniform control flow.
fn shuffle_xor(v: vec4<u32>, mask: u32, scope: u32, lid: u32) -> vec4<u32> {
    if mask * scope < WG {
        return subgroupShuffleXor(v, mask);
    }
    // Reads of the last call are done.
    workgroupBarrier();
    exchanged[lid] = v;
    workgroupBarrier();
    return exchanged[lid ^ mask];
}
