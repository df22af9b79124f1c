"""Every reason, note, finding and cause of a record, in English and Chinese.

A record carries codes with arguments (``spec.Message``); this table holds the sentence of
each code. To add a message: emit ``message("my_code", steps=3)`` and add ``"my_code"`` here
with both languages; the arguments stand in the sentences as for ``str.format``, format
specifications included: a share is stored as 0.25 and printed with ``{share:.1%}``. The codes
of one case stand in its ``Case.messages`` and begin with the case's name and a dot. A test
walks the source for every ``message(...)`` and finds code and arguments here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainmark.results.ways_out import WAYS_OUT
from trainmark.spec import Message, Text

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGES: dict[str, Text] = {
    # Why a figure is null
    "no_train_time": Text("a rank did not report its training time", "有 rank 未上报训练时间"),
    "nothing_trained": Text("nothing was trained", "没有训练任何样本"),
    "no_rank_started": Text("no rank started", "没有 rank 启动"),
    "no_step_after_warmup": Text(
        "no step after the {steps} warm-up steps", "{steps} 步预热之后没有训练步"
    ),
    "rank_without_measured_step": Text(
        "a rank reported no step after the warm-up", "有 rank 未上报预热之后的训练步"
    ),
    "one_step_has_no_deviation": Text(
        "one step after the warm-up has no deviation", "预热之后仅有一步，无标准差"
    ),
    "no_finite_loss": Text(
        "no step reported a loss that is a finite number", "没有训练步上报有限的损失值"
    ),
    "no_flop_formula": Text("no FLOP formula for this case", "该用例没有 FLOP 公式"),
    "peak_unknown": Text(
        "no dense {precision} peak is known for {product}", "{product} 的 {precision} 稠密峰值未知"
    ),
    "devices_differ": Text(
        "the ranks ran on different devices: {products}", "各 rank 所用设备不同：{products}"
    ),
    "matmul_rate_unmeasured": Text(
        "the matmul rate was not measured on every rank", "并非每个 rank 都实测了矩阵乘速率"
    ),
    "no_tokens": Text("this case has no tokens", "该用例没有 token"),
    "memory_unreported": Text("no rank reported its memory", "没有 rank 上报内存"),
    "device_unreported": Text("no rank reported its device", "没有 rank 上报设备"),
    "no_counting_allocator": Text(
        "this device has no counting allocator", "该设备的内存分配器不支持统计"
    ),
    "ended_before_evaluation": Text("the run ended before an evaluation", "运行在首次评估前结束"),
    "never_evaluates": Text("this recipe evaluates nothing", "该配方不做评估"),
    "evaluation_not_finite": Text("the last evaluation gave no number", "最后一次评估未得到数值"),
    "no_headline_mfu": Text(
        "embedding look-ups, not matmuls, are the work here: see bytes/s and FLOP/s",
        "该用例的主要工作是嵌入查找而非矩阵乘：见 bytes/s 与 FLOP/s",
    ),
    "one_rank_no_exchange": Text("one rank exchanges nothing", "单个 rank 无需交换"),
    "embedding_untimed": Text("the embedding stage was not timed", "嵌入阶段未计时"),
    # How a figure was measured
    "tokens_without_padding": Text(
        "tokens without padding, per device, evaluation left out",
        "不含填充，按单个设备计，不含评估时间",
    ),
    "sequences_per_sample": Text(
        "{sequences:.2f} sequences a sample on average", "平均每个样本 {sequences:.2f} 条序列"
    ),
    "dense_peak": Text(
        "dense {precision} peak {tflops:g} TFLOP/s ({evidence})",
        "{precision} 稠密峰值 {tflops:g} TFLOP/s（{evidence}）",
    ),
    "measured_in_preflight": Text("measured in preflight", "预检时实测"),
    "resident_memory_sum": Text(
        "sum of the ranks' peak resident memory", "各 rank 常驻内存峰值之和"
    ),
    "device_memory_at_edges": Text(
        "fullest device, device-wide, at window edges", "占用最高的设备，整卡口径，在窗口边界采样"
    ),
    "until_launcher_saw_end": Text(
        "until the launcher saw the run end", "计至启动器观察到运行结束"
    ),
    "embedding_bytes": Text(
        "rows and gradients read, rows read and written", "读取行和梯度，读写被更新的行"
    ),
    "exchange_bytes": Text("sent to other ranks, forward and backward", "前向与反向发往其他 rank"),
    "copy_measured": Text("a large copy, measured after training", "大块拷贝，训练后实测"),
    "embedding_time": Text("look-ups and updates of rows", "嵌入行的查找与更新"),
    "dense_time": Text(
        "all time outside look-ups, exchanges and input: mostly the dense layers",
        "查找、交换与输入之外的时间：主要是稠密层",
    ),
    "device_marks": Text("timed by the device's own marks", "由设备自身的计时标记得出"),
    "embedding_bandwidth": Text(
        "embedding bytes/s within the stage over the copy rate",
        "嵌入阶段内的字节速率除以拷贝速率",
    ),
    # Why a run did not pass
    "exception": Text("{text}", "异常信息：{text}"),
    "fault": Text("{text}", "错误信息：{text}"),
    "loss_not_finite": Text(
        "the loss became {value} at step {step}; a loss must stay a finite number",
        "第 {step} 步的损失变为 {value}；损失必须是有限数",
    ),
    "loss_scale_at_floor": Text(
        "the loss scale fell to {scale:g} by step {step}; below {floor:g} every gradient "
        "overflows in fp16",
        "到第 {step} 步损失缩放系数降至 {scale:g}；低于 {floor:g} 时 fp16 梯度全部溢出",
    ),
    "epoch_without_batch": Text(
        "epoch {epoch} held no batch; every epoch must train at least one step",
        "第 {epoch} 轮没有任何批次；每一轮至少要训练一步",
    ),
    "target_missed": Text(
        "{metric} did not reach {target:g} in {epochs} epoch(s) and {steps} steps: the last value "
        "was {value:.4f}",
        "{metric} 在 {epochs} 轮、{steps} 步内未达到 {target:g}：最后一次为 {value:.4f}",
    ),
    "target_missed_without_evaluation": Text(
        "{metric} did not reach {target:g} in {epochs} epoch(s) and {steps} steps: no evaluation "
        "was made",
        "{metric} 在 {epochs} 轮、{steps} 步内未达到 {target:g}：未做评估",
    ),
    "timed_out": Text(
        "the run was still going after {limit_s:g} s and was stopped; {steps} steps were done",
        "运行超过 {limit_s:g} s 仍未结束，已被停止；完成 {steps} 步",
    ),
    "stopped_by_signal": Text(
        "stopped by {signal} after {steps} steps", "在 {steps} 步后被 {signal} 停止"
    ),
    "launcher_killed": Text(
        "the launcher was killed; {steps} steps were done", "启动器被终止；完成 {steps} 步"
    ),
    "run_files_lost": Text(
        "the run's folder or files in it were deleted or changed while it ran: {files}; they were "
        "written again as the launcher knew them, and {steps} steps are left of what the ranks "
        "measured",
        "运行目录或其中的文件在运行期间被删除或改动：{files}；启动器已按所知内容重新写出，"
        "各 rank 的测量数据仅剩 {steps} 步",
    ),
    "launcher_failed": Text("the launcher failed: {text}", "启动器出错：{text}"),
    "rank_killed": Text("rank {rank} was killed by {signal}", "rank {rank} 被 {signal} 终止"),
    "rank_killed_out_of_memory": Text(
        "rank {rank} was killed by {signal}; the kernel's out-of-memory killer ran during this "
        "time",
        "rank {rank} 被 {signal} 终止；其间内核因内存不足终止了进程",
    ),
    "rank_exited": Text(
        "rank {rank} exited with code {exit_code}", "rank {rank} 退出，退出码 {exit_code}"
    ),
    "rank_unfinished": Text(
        "rank {rank} ended without finishing its events", "rank {rank} 结束时事件不完整"
    ),
    "launcher_events_malformed": Text(
        "{lines} malformed line(s) in the launcher's events", "启动器事件中有 {lines} 行格式错误"
    ),
    "steps_lost": Text(
        "events of rank {rank} were lost: {lines} malformed line(s), {steps} of {trained} steps "
        "are there",
        "rank {rank} 的事件有丢失：{lines} 行格式错误，{trained} 步中仅有 {steps} 步",
    ),
    "samples_altered": Text(
        "events of rank {rank} were altered: {samples} of {trained} samples are there",
        "rank {rank} 的事件被改动：{trained} 个样本中仅有 {samples} 个",
    ),
    "evaluations_lost": Text(
        "events of rank {rank} were lost: {evaluations} of {made} evaluations are there",
        "rank {rank} 的事件有丢失：{made} 次评估中仅有 {evaluations} 次",
    ),
    "facts_lost": Text(
        "events of rank {rank} were lost: its facts or its result",
        "rank {rank} 的事件有丢失：缺少运行信息或结果",
    ),
    "ranks_end_unknown": Text(
        "the launcher did not record how the ranks ended", "启动器未记录各 rank 如何结束"
    ),
    "agent_killed": Text(
        "the process that starts the ranks was killed by {signal}; its output is in "
        "log.launcher.txt",
        "启动各 rank 的进程被 {signal} 终止；其输出见 log.launcher.txt",
    ),
    "agent_exited": Text(
        "the process that starts the ranks exited with code {exit_code}; its output is in "
        "log.launcher.txt",
        "启动各 rank 的进程以退出码 {exit_code} 退出；其输出见 log.launcher.txt",
    ),
    "mfu_above_one": Text(
        "MFU {share:.1%} is above 100%: a count, a time or the peak is wrong",
        "MFU {share:.1%} 超过 100%：计数、计时或峰值有误",
    ),
    # Counts that cannot be true together
    "step_without_batch": Text(
        "step {step} took no batch: the job reports steps that train nothing",
        "第 {step} 步没有取任何批次：用例上报了不训练的步",
    ),
    "step_samples_differ": Text(
        "the micro-batches of step {step} say different numbers of samples for the same step, "
        "{least} to {most}",
        "第 {step} 步的各微批次对同一步的样本数说法不一：{least} 至 {most}",
    ),
    "samples_above_step": Text(
        "one rank trained {samples} samples in step {step}, but the whole step has {step_samples} "
        "over all ranks",
        "单个 rank 在第 {step} 步训练了 {samples} 个样本，"
        "而该步所有 rank 合计只有 {step_samples} 个",
    ),
    "counts_contradict": Text(
        "step {step} counts {most} {more} but {least} {less}: a sample has at least one sequence, "
        "a sequence at least one token, and padding only adds to them",
        "第 {step} 步计有 {most} {more}，却只有 {least} {less}：一个样本至少一条序列，"
        "一条序列至少一个 token，填充只增不减",
    ),
    "steps_of_epoch": Text(
        "epoch {epoch} had {steps} steps; the job announced {planned} (steps_per_epoch)",
        "第 {epoch} 轮有 {steps} 步，而用例声明为 {planned} 步（steps_per_epoch）",
    ),
    "samples_of_epoch": Text(
        "epoch {epoch} counts {samples} samples over all ranks; the data has {expected} for it",
        "第 {epoch} 轮所有 rank 合计 {samples} 个样本，而数据集一轮为 {expected} 个",
    ),
    "tokens_above_length": Text(
        "{tokens} tokens with padding in {sequences} sequences are more than seq_length={length} "
        "allows",
        "{sequences} 条序列含填充共 {tokens} 个 token，超过 seq_length={length} 所允许的数量",
    ),
    "steps_differ_over_ranks": Text(
        "one rank took {least} steps, another {most}",
        "有 rank 走了 {least} 步，另有 rank 走了 {most} 步",
    ),
    "step_samples_differ_over_ranks": Text(
        "the ranks say different numbers of samples for step {step}",
        "各 rank 对第 {step} 步的样本数说法不一",
    ),
    "samples_of_step": Text(
        "the ranks trained {samples} samples in step {step}; its batches say {step_samples}",
        "各 rank 在第 {step} 步合计训练 {samples} 个样本，而批次声明为 {step_samples} 个",
    ),
    "samples_above_global_batch": Text(
        "step {step} trained {samples} samples; micro_batch_size x grad_accum_steps x ranks is "
        "{most}",
        "第 {step} 步训练了 {samples} 个样本，"
        "而 micro_batch_size x grad_accum_steps x rank 数为 {most}",
    ),
    # Work that was not done, or not while it was timed
    "parameters_unchanged_in_window": Text(
        "steps {first} to {last} changed not a bit of the {parameters} trained parameters, though "
        "{updates} of them were to: they did not train",
        "第 {first} 至 {last} 步中 {updates} 步应更新参数，"
        "但 {parameters} 个受训参数没有任何一位改变：未真正训练",
    ),
    "parameters_changed_in_evaluation": Text(
        "trained parameters changed during the evaluation after step {step}: work of the steps "
        "was done outside their time",
        "第 {step} 步之后的评估期间受训参数发生了变化：训练步的工作在计时之外完成",
    ),
    "parameters_changed_after_training": Text(
        "trained parameters changed after the training had ended: work of the steps was done "
        "outside their time",
        "训练结束之后受训参数仍发生变化：训练步的工作在计时之外完成",
    ),
    "no_trained_parameters": Text(
        "the job names no trained parameters", "用例没有给出任何受训参数"
    ),
    "never_updated": Text(
        "no step was to change a parameter: each had a learning rate of 0 or was dropped by the "
        "loss scaler",
        "没有任何一步应更新参数：学习率均为 0，或均被损失缩放跳过",
    ),
    # What `trainmark check` finds
    "check_text_missing": Text(
        "{field} of the case is empty in language {lang}", "用例的 {field} 缺少 {lang} 文本"
    ),
    "check_field_undescribed": Text(
        "recipe field {field} has no description: give recipe_field a doc",
        "配方字段 {field} 没有说明：请在 recipe_field 中给出 doc",
    ),
    "check_recipe_type": Text(
        "recipe {recipe} is not of the case's recipe_type {type}",
        "配方 {recipe} 不是该用例的 recipe_type {type}",
    ),
    "check_nothing_measured": Text(
        "recipe {recipe} ends after {steps} steps, all within its {warmup} warm-up steps",
        "配方 {recipe} 在 {steps} 步后结束，全部处于 {warmup} 步预热之内",
    ),
    "check_target_unevaluated": Text(
        "recipe {recipe} has a target and never evaluates",
        "配方 {recipe} 设有目标，却从不评估",
    ),
    "check_no_generated_recipe": Text(
        "no recipe trains on generated data: add one called tiny, so that the case runs without "
        "downloads",
        "没有使用生成数据的配方：请添加名为 tiny 的配方，使用例无需下载即可运行",
    ),
    "check_data_not_repeatable": Text(
        "recipe {recipe}: generate wrote different bytes the second time ({files}); draw "
        "everything from recipe.seed",
        "配方 {recipe}：generate 第二次写出的内容不同（{files}）；所有随机数应由 recipe.seed 产生",
    ),
    "check_data_empty": Text(
        "recipe {recipe}: its generated data has no training or no evaluation samples",
        "配方 {recipe}：生成的数据缺少训练样本或评估样本",
    ),
    "check_target_unreachable": Text(
        "recipe {recipe}: the target {target:g} is beyond {best:g}, the best any model can score "
        "on its data",
        "配方 {recipe}：目标 {target:g} 超出该数据上任何模型的最佳得分 {best:g}",
    ),
    "check_run_failed": Text(
        "the run with {ranks} rank(s) failed in {place}; its error follows",
        "{ranks} 个 rank 的运行在 {place} 失败；错误如下",
    ),
    "check_evaluation_rows": Text(
        "with {ranks} rank(s) the evaluation scored {scored} of {rows} rows: give every row to "
        "exactly one rank (evaluation_rows) and add up over the ranks (add_over_ranks)",
        "{ranks} 个 rank 时评估了 {rows} 行中的 {scored} 行：每行应恰好由一个 rank 评估"
        "（evaluation_rows），并对各 rank 求和（add_over_ranks）",
    ),
    "check_flops": Text(
        "model_flops says {said:.4g} FLOPs for a step in which torch counted {counted:.4g} (ratio "
        "{ratio:.3f}): count forward and backward matmuls of what the batch holds",
        "model_flops 给出一步 {said:.4g} FLOPs，torch 计得 {counted:.4g}（比值 {ratio:.3f}）："
        "应计入该批次前向与反向的矩阵乘",
    ),
    "check_loss_not_falling": Text(
        "with {ranks} rank(s) the loss did not fall over {steps} steps: {first:.4g} in the first "
        "tenth, {last:.4g} in the last; look at the learning rate, the labels, and whether the "
        "optimizer holds the model's parameters",
        "{ranks} 个 rank 时损失在 {steps} 步内没有下降：前十分之一为 {first:.4g}，后十分之一为 "
        "{last:.4g}；请检查学习率、标签，以及优化器是否持有模型参数",
    ),
    "check_losses_differ": Text(
        "over the first {steps} steps on the same rows the mean loss is {one:.4g} with one rank "
        "and {two:.4g} with two: return the SUM of a batch's losses, take rows from Sharding, and "
        "weigh by step_samples",
        "前 {steps} 步使用相同的行，一个 rank 的平均损失为 {one:.4g}，两个 rank 为 {two:.4g}："
        "应返回批次损失之和，行取自 Sharding，并按 step_samples 加权",
    ),
    "check_qualities_differ": Text(
        "after the same steps the evaluation gives {one:.4g} with one rank and {two:.4g} with two: "
        "add up scores and rows over the ranks before dividing",
        "训练相同步数后，一个 rank 的评估值为 {one:.4g}，两个 rank 为 {two:.4g}："
        "应先对各 rank 的得分与行数求和，再相除",
    ),
    "check_too_few_steps": Text("{steps} steps are too few to tell", "仅 {steps} 步，不足以判断"),
    "check_without_run": Text("the job could not be looked at", "无法检查该 job"),
    "check_without_second_rank": Text(
        "no run with two ranks: {text}", "没有两个 rank 的运行：{text}"
    ),
    "gradients_zero": Text(
        "{number} of {parameters} trained parameters received nothing but zeros as gradients in "
        "the first steps: {names}",
        "{parameters} 个被训练参数中有 {number} 个在最初几步收到的梯度全为零：{names}",
    ),
    "parameters_never_changed": Text(
        "{number} of {parameters} trained parameters never changed in {updates} updates, as if "
        "they had no gradient: {names}",
        "{parameters} 个受训参数中有 {number} 个在 {updates} 次更新后从未改变，"
        "如同没有梯度：{names}",
    ),
    # Findings: what makes figures doubtful
    "evaluation_far_longer": Text(
        "evaluating {rows} rows took {evaluation_s:.1f} s, {row_s:.2g} s a row; training took "
        "{sample_s:.2g} s a sample, forward and backward: {factor:.0f} times as long, where more "
        "than {limit:.0f} times says that work of the steps is done in the evaluation",
        "评估 {rows} 行用时 {evaluation_s:.1f} s，每行 {row_s:.2g} s；训练每个样本含前向与反向为 "
        "{sample_s:.2g} s：前者为后者的 {factor:.0f} 倍，"
        "超过 {limit:.0f} 倍说明训练工作可能在评估中完成",
    ),
    "loss_never_changes": Text(
        "the loss was {loss:.6g} in all {steps} steps: no training gives the same for every batch",
        "全部 {steps} 步的损失均为 {loss:.6g}：真实训练中各批次的损失不会完全相同",
    ),
    "flops_above_preflight": Text(
        "{tflops:.3g} TFLOP/s of the model a device are {share:.2f} times the {matmul_tflops:.3g} "
        "TFLOP/s of a large matmul in preflight: that rate was disturbed, or steps did less than "
        "the FLOP formula counts",
        "每设备模型 {tflops:.3g} TFLOP/s，"
        "为预检大矩阵乘 {matmul_tflops:.3g} TFLOP/s 的 {share:.2f} 倍："
        "预检速率受到干扰，或训练步的实际计算少于 FLOP 公式所计",
    ),
    "evaluated_rows": Text(
        "the last evaluation scored {scored} rows, the validation data has {rows}",
        "最后一次评估的行数为 {scored}，验证数据共 {rows} 行",
    ),
    "few_updates": Text(
        "{updates} of {steps} steps changed parameters, {skipped} were dropped by the loss scaler: "
        "the others took batches and time and trained nothing",
        "{steps} 步中有 {updates} 步更新了参数，{skipped} 步被损失缩放跳过："
        "其余步消耗了批次和时间，但没有训练",
    ),
    "trust_few_updates": Text("steps that trained nothing", "存在没有训练的步"),
    "own_epoch": Text(
        "an epoch trains {samples} samples of {rows} rows, as the job says",
        "按用例声明，一轮训练 {samples} 个样本，数据共 {rows} 行",
    ),
    # Precisions: what they mean for weights and matmuls
    "precision_fp32": Text("fp32 (TF32 off)", "fp32（TF32 关闭）"),
    "precision_tf32": Text("fp32 storage, TF32 matrix units", "fp32 存储，TF32 矩阵单元"),
    "precision_bf16": Text("amp (bf16)", "amp（bf16）"),
    "precision_fp16": Text("amp (fp16)", "amp（fp16）"),
    "weights_held_in": Text(
        "{dtype}, frozen weights too; trained weights in fp32",
        "{dtype}，冻结权重同为该精度；训练权重为 fp32",
    ),
    # Notes of a record
    "not_steady": Text(
        "not steady: median step time moved by {drift:+.1%} between the first and the last third "
        "of the measured steps",
        "不稳定：首尾各三分之一计量步的步耗时中位数变化 {drift:+.1%}",
    ),
    "steadiness_unknown": Text(
        "too few steps after the warm-up to tell whether they were steady",
        "预热后的步数过少，无法判断是否稳定",
    ),
    "quality_above_best": Text(
        "{metric} {value:.4f} is above {best:.4f}, the best any model can score on this data: "
        "labels may leak",
        "{metric} {value:.4f} 高于该数据上任何模型的最佳得分 {best:.4f}：标签可能泄漏",
    ),
    "target_missed_not_required": Text(
        "{metric} {value:.4f} did not reach {target:g}, which this recipe does not require",
        "{metric} {value:.4f} 未达到 {target:g}；该配方不要求达到目标",
    ),
    "machine_busy": Text(
        "the machine was busy: other work used {share:.0%} of the cores during the run",
        "机器繁忙：运行期间其他任务占用了 {share:.0%} 的核",
    ),
    "oversubscribed": Text(
        "more ranks than cores: throughput says little about the machine",
        "rank 数多于核数：吞吐量不能反映机器性能",
    ),
    "loss_did_not_fall": Text(
        "the training loss did not fall beyond its noise: {first:.4f} over the first tenth of the "
        "steps, {last:.4f} over the last",
        "训练损失的下降未超出波动范围：前十分之一步均值 {first:.4f}，后十分之一步均值 {last:.4f}",
    ),
    "malformed_event_lines": Text(
        "rank {rank}: {lines} malformed event line(s)", "rank {rank}：{lines} 行事件格式错误"
    ),
    # Why figures are not to be trusted without more ado, in short
    "trust_not_passed": Text("the run did not pass", "运行未通过"),
    "trust_generated_data": Text("generated data", "数据为生成数据"),
    "trust_impossible_rate": Text(
        "an impossible figure: MAMFU {share:.1%}", "指标不可能：MAMFU {share:.1%}"
    ),
    "trust_above_best": Text("{metric} above the best possible", "{metric} 高于可能的最佳值"),
    "trust_constant_loss": Text("the loss never changes", "损失从不变化"),
    "trust_long_evaluation": Text("evaluations last too long", "评估耗时过长"),
    "trust_malformed_events": Text("malformed event lines", "事件行格式错误"),
    "trust_oversubscribed": Text("more ranks than cores", "rank 数多于核数"),
    "trust_drift": Text("step time drifted by {drift:+.1%}", "步耗时漂移 {drift:+.1%}"),
    "trust_steadiness_unknown": Text(
        "too few steps to tell steadiness", "步数过少，无法判断稳定性"
    ),
    "trust_cv": Text("step time CV {cv:.1%}", "步耗时变异系数 {cv:.1%}"),
    "trust_busy": Text(
        "busy machine ({share:.0%} other work)", "机器繁忙（其他任务占 {share:.0%}）"
    ),
    "trust_swing": Text(
        "matmul rate moved by {swing:.0%} in preflight", "预检矩阵乘速率波动 {swing:.0%}"
    ),
    "trust_launch_cv": Text("CV between launches {cv:.1%}", "各次运行间变异系数 {cv:.1%}"),
    "trust_few_launches": Text(
        "fewer than {least} launches ({launches})", "运行次数少于 {least} 次（{launches} 次）"
    ),
    # What the evidence says against a record
    "evidence_absent": Text(
        "its evidence is not beside it: nothing can be verified", "记录旁没有证据文件：无法核验"
    ),
    "evidence_other_version": Text(
        "computed otherwise by version {version}: not verified",
        "由版本 {version} 以不同方式计算：未核验",
    ),
    "evidence_unnamed": Text("{file} is not named in the record", "记录未列出 {file}"),
    "evidence_missing": Text("{file} is missing", "缺少 {file}"),
    "evidence_altered": Text(
        "{file} is not the file that was measured (SHA-256 differs)",
        "{file} 与测得的文件不符（SHA-256 不同）",
    ),
    "evidence_unreadable": Text(
        "the evidence cannot be read as a run", "证据文件无法作为一次运行读取"
    ),
    "evidence_disagrees": Text(
        "{field} is {recorded}, but {recomputed} by the evidence ({fields} differing value(s))",
        "{field} 为 {recorded}，而按证据应为 {recomputed}（共 {fields} 处不同）",
    ),
    # What the steps of a model with embedding tables are bound by
    **{
        f"bound_by_{resource}{'_far_from_limit' if far else ''}": Text(
            f"the steps are bound by {resource}: embeddings take {{embedding_share:.1%}} of their "
            "time at {embedding_rate:.1%} of the copy rate, dense layers {dense_share:.1%} at "
            "{dense_rate:.1%} of the matmul rate, exchanges {exchange_share:.1%}, input "
            "{input_share:.1%}"
            + (
                "; that stage is far from its limit: many small operations cost more than their "
                "work"
                if far
                else ""
            ),
            f"训练步受限于{name}：嵌入占时间 {{embedding_share:.1%}}，达到拷贝速率的 "
            "{embedding_rate:.1%}；稠密层占 {dense_share:.1%}，达到矩阵乘速率的 {dense_rate:.1%}；"
            "交换占 {exchange_share:.1%}；输入占 {input_share:.1%}"
            + ("；该部分远未达到其上限：大量小操作的开销超过其计算" if far else ""),
        )
        for resource, name in (
            ("memory", "内存带宽"),
            ("compute", "计算"),
            ("exchange", "通信交换"),
            ("input", "数据输入"),
        )
        for far in (False, True)
    },
    # What to do about a run that did not pass
    **WAYS_OUT,
}


class _Unknown(str):
    """Stands for an argument that is null: printed as it is under every format."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


_UNKNOWN = {"en": _Unknown("unknown"), "zh": _Unknown("未知")}


def render(message: Message, lang: str, own: Mapping[str, Text] | None = None) -> str:
    """Return the sentence of ``message`` in ``lang``.

    Args:
        own: the sentences of the case's own codes, as the record carries them.

    A code or arguments that this version does not know (a record of another version, or one
    that was edited) are printed as they stand, so that nothing a record says is hidden.
    """
    found = MESSAGES.get(message.code) or (own or {}).get(message.code)
    args = {name: _UNKNOWN[lang] if v is None else v for name, v in message.args.items()}
    if found is not None:
        try:
            return found.in_language(lang).format(**args)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            pass  # not the arguments of this code: shown below as they stand
    shown = ", ".join(f"{name}={value}" for name, value in args.items())
    return f"{message.code} ({shown})" if shown else message.code
