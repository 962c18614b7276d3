// Short-lived buffers of some 100 KiB, of which a lookup of thousands of blocks needs several.
#pragma once

namespace newmoon {

// glibc gives large buffers back to the kernel as soon as they are freed, and every page is
// then zeroed anew: two thirds of the time of such a lookup. It learns from the largest one
// freed what is not worth that (mallopt(3), M_MMAP_THRESHOLD, dynamic); this teaches it, as
// any larger buffer of the process would have done. It never lowers what has been learned,
// and does nothing with another allocator. Any thread, any number of times.
void keep_freed_memory();

}  // namespace newmoon
