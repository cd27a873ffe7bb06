/** Subgroups in a browser: wgpu 30 cannot ask for the feature (gfx-rs/wgpu 10146, 10220), so the worker asks in its place. */

/** Parts of WebGPU in use, which the types of the DOM do not have everywhere. */
interface Adapter {
  readonly features: ReadonlySet<string>;
}

interface DeviceDescriptor {
  requiredFeatures?: Iterable<string>;
}

type RequestDevice = (this: Adapter, descriptor?: DeviceDescriptor) => Promise<unknown>;

interface Scope {
  navigator?: {
    gpu?: { readonly wgslLanguageFeatures?: ReadonlySet<string>; requestAdapter(): Promise<Adapter | null> };
  };
  GPUAdapter?: { prototype: { requestDevice: RequestDevice } };
}

const FEATURE = "subgroups";

/** The kernels use the builtins `subgroup_id` and `num_subgroups`. */
const BUILTINS = "subgroup_id";

const wrapped = new WeakSet<RequestDevice>();

/**
 * Makes every device that this worker requests have subgroups where the adapter has them, and says whether they have. Call it before the
 * engine opens a GPU; a second call changes nothing. @internal
 */
export async function requestSubgroups(scope = globalThis as Scope): Promise<boolean> {
  const prototype = scope.GPUAdapter?.prototype;
  const gpu = scope.navigator?.gpu;
  if (!prototype || !gpu?.wgslLanguageFeatures?.has(BUILTINS)) {
    return false;
  }
  const adapter = await gpu.requestAdapter().catch(() => null);
  if (!adapter?.features.has(FEATURE)) {
    return false;
  }
  const { requestDevice } = prototype;
  if (!wrapped.has(requestDevice)) {
    const withSubgroups: RequestDevice = function (descriptor = {}) {
      const requiredFeatures = new Set(descriptor.requiredFeatures);
      if (this.features.has(FEATURE)) {
        requiredFeatures.add(FEATURE);
      }
      return requestDevice.call(this, { ...descriptor, requiredFeatures: [...requiredFeatures] });
    };
    wrapped.add(withSubgroups);
    prototype.requestDevice = withSubgroups;
  }
  return true;
}
