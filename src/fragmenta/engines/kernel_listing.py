"""Which parts of a plan run as generated GPU kernels on this machine, and why others do not."""

from fragmenta.graph import Plan
from fragmenta.worker.backends.xla import site, spec_of
from fragmenta.worker.deploy import segments_with_kernels
from fragmenta.worker.optimize import optimize


def kernel_lines(plan: Plan) -> list[str]:
    """The kernels of every segment, with times where they were measured, and what stays with XLA; empty where a device
    has none."""
    replicas = {program.fragment.name: program.replicas for program in plan.programs}
    lines = []
    for program in plan.programs:
        group = program.fragment.devices if program.together else program.fragment.devices[:1]
        where = site(group, program.fragment.axis if program.together else None)
        schedule = optimize(program, replicas, where.unroll)
        specs = {key: spec_of(schedule, where, key) for key in schedule.shapes}
        for segment, report in segments_with_kernels(schedule, where, specs)[1].items():
            kernels = [f"{kernel.name} ({' x '.join(map(str, kernel.space))} rows)" for kernel in report.kernels]
            lines.append(f"kernels in {program.fragment.name}: {segment}: {', '.join(kernels) or 'none'}")
            lines += [f"  {remark}" for remark in report.remarks]
            lines += [f"  stays with XLA: {reason}" for reason in dict.fromkeys(report.reasons)]
    return lines
