#pragma once
// `program -n 4` starts itself four times.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace accrue::dist {

/// Replaces this process by Open MPI's mpirun with `ranks` copies of it: the same program with
/// `arguments` (without its own name and without the option that led here). `hosts`: as for mpirun
/// -H, "a:8,b:8"; empty: this machine.
///
/// The settings of dist/openmpi-mca.conf are part of the library; variables OMPI_MCA_... that are
/// already set win. A user who is root is allowed to be (mpirun would refuse).
///
/// Returns never: throws kUnsupported when no mpirun is found, and DistributedError (82) when this
/// process was itself started by a launcher.
[[noreturn]] void relaunch_under_mpirun(int ranks, const std::vector<std::string>& arguments,
                                        const std::string& hosts = {});

/// "name=value" of each setting, from dist/openmpi-mca.conf.
std::vector<std::pair<std::string, std::string>> launch_settings();
}  // namespace accrue::dist
