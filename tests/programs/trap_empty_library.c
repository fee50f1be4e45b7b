/* What any preloaded library costs: nothing is in it. */
int trap_empty_library;
