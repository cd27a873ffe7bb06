// Shuffles within a workgroup, by subgroup operations where both invocations are in one subgroup.

var<workgroup> exchanged: array<vec4<u32>, WG>;

// Value of the invocation lid ^ mask, mask a power of two; in uniform control flow.
fn shuffle_xor(v: vec4<u32>, mask: u32, lid: u32) -> vec4<u32> {
    if mask * subgroup.count < WG {
        return subgroupShuffleXor(v, mask);
    }
    // Reads of the last call are done.
    workgroupBarrier();
    exchanged[lid] = v;
    workgroupBarrier();
    return exchanged[lid ^ mask];
}
