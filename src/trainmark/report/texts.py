"""Every word of the pages and tables, in English and in Chinese.

Field terms (``p_core``, ``fix_hp``, span names) are the same in both languages and are not
here. Sentences of messages are in ``results.messages``.
"""

from __future__ import annotations

from trainmark.errors import nearest
from trainmark.spec import Text

LANGUAGES = ("en", "zh")

TEXTS: dict[str, Text] = {
    # Headings
    "page.title": Text("{title}: training speed", "{title}训练性能结果"),
    "section.cause": Text("Why the run did not pass", "未通过原因"),
    "section.environment": Text("Environment", "环境配置"),
    "section.hardware": Text("Hardware", "硬件环境"),
    "section.software": Text("Software", "软件环境"),
    "section.run": Text("The run", "运行情况"),
    "section.facts": Text("Facts of the run", "运行信息"),
    "section.parallel": Text("Parallel strategy", "并行策略"),
    "section.optimisation": Text("Optimisation strategy", "优化策略"),
    "section.batch": Text("Batch sizes", "输入批尺寸"),
    "section.columns": Text("What the columns mean", "各列含义"),
    "columns.form": Text("{name}: {meaning}", "{name}：{meaning}"),
    "section.figures": Text("All figures", "全部指标"),
    "tiles.not_a_result": Text(
        "The run did not pass: these figures are no result.", "运行未通过：以下数值不是有效结果。"
    ),
    "section.general": Text("General figures", "通用指标"),
    "section.performance": Text("Performance figures", "性能指标"),
    "section.repeats": Text("Repeated launches", "重复运行统计"),
    "section.further": Text("Further figures", "更多指标"),
    "section.placement": Text("Placement of embedding tables", "嵌入表的放置"),
    "section.quality": Text("Quality by evaluation", "训练结果变化"),
    "section.steps": Text("Step by step", "逐步曲线"),
    "section.spans": Text("Where the time went", "耗时构成"),
    "section.counts": Text("Counts", "计数"),
    "section.references": Text("Published figures", "已公布结果对比"),
    "section.glossary": Text("Words on this page", "术语说明"),
    "section.footer": Text("Provenance", "结果来源"),
    # Table headers
    "head.configuration": Text("configuration", "配置"),
    "head.name": Text("figure", "指标名称"),
    "head.value": Text("value", "指标值"),
    "head.remark": Text("remark", "特殊说明"),
    "head.unit": Text("unit", "单位"),
    "head.count": Text("count", "计数项"),
    "head.epoch": Text("epoch", "轮次"),
    "head.step": Text("step", "步数"),
    "head.samples": Text("samples evaluated", "评估样本数"),
    "head.detail": Text("detail", "明细"),
    "quality.parts": Text("At the last evaluation, {kind}:", "最后一次评估，{kind}："),
    "head.placement.rank": Text("rank", "rank"),
    "head.placement.rows": Text("rows", "行数"),
    "head.placement.gib": Text("GiB", "GiB"),
    "head.placement.lookups": Text("look-ups", "查找占比"),
    "head.placement.tables": Text("tables", "表"),
    "head.run": Text("run", "运行"),
    "head.file": Text("file", "文件"),
    "head.bytes": Text("bytes", "字节数"),
    "head.median": Text("median", "中位数"),
    "head.interval": Text("95% interval", "95% 区间"),
    "head.range": Text("range", "范围"),
    "head.cv": Text("CV", "变异系数"),
    "head.launches": Text("launches", "次数"),
    "head.passes": Text("passes (computed by us)", "折合遍数（本系统计算）"),
    # Environment
    "env.machine": Text("Machine", "机器型号"),
    "env.card": Text("Accelerator", "加速卡型号"),
    "env.card_detail": Text("Accelerator details", "加速卡详情"),
    "env.cpu": Text("CPU", "CPU型号"),
    "env.host_memory": Text("Host memory", "主机内存"),
    "env.network": Text("Network between machines, bandwidth", "多机网络类型、带宽"),
    "env.os": Text("OS", "OS版本"),
    "env.kernel": Text("OS kernel", "OS kernel版本"),
    "env.driver": Text("Accelerator driver", "加速卡驱动版本"),
    "env.container": Text("Container", "容器"),
    "env.framework": Text("Training framework", "训练框架版本"),
    "env.packages": Text("Dependent packages", "依赖软件版本"),
    "env.collective": Text("Collective library", "集合通信库"),
    "env.variables": Text("Variables", "环境变量"),
    "env.shared": Text("{name}, shared by {n} rank(s)", "{name}，由 {n} 个 rank 共用"),
    "env.cores": Text("{n} usable cores", "可用核数 {n}"),
    "env.numa": Text("{n} NUMA node(s)", "NUMA 节点数 {n}"),
    # Facts of the run
    "fact.status": Text("Status", "状态"),
    "fact.verdict": Text("Verdict against the target", "目标判定"),
    "fact.labels": Text("Labels", "标签"),
    "fact.rules": Text("Rules", "规则"),
    "fact.recipe": Text("Recipe", "训练配方"),
    "fact.world": Text("World", "运行规模"),
    "fact.predicted_memory": Text(
        "Peak memory predicted for a process's tensors", "预计每个进程的张量内存峰值"
    ),
    "fact.parameters": Text("Parameters", "参数量"),
    "fact.recipe_fields": Text("Recipe fields", "配方字段"),
    "fact.parallel": Text("Parallel strategy", "并行策略"),
    "fact.repeat": Text("Launch", "运行序号"),
    "fact.started": Text("Started (UTC)", "开始时间（UTC）"),
    "fact.steady": Text("Steadiness", "稳定性"),
    "fact.flags": Text("Precision flags in force", "实际生效的精度开关"),
    "fact.findings": Text("Findings", "疑点"),
    "fact.notes": Text("Notes", "备注"),
    "fact.none": Text("none", "无"),
    "fact.unknown": Text("not known", "未知"),
    "fact.not_used": Text("does not apply", "不适用"),
    "fact.yes": Text("yes", "是"),
    "fact.no": Text("no", "否"),
    "parameters.trained": Text(
        "{all}, of which {trained} are trained", "{all}，其中训练 {trained}"
    ),
    "rules.closed": Text(
        "closed: only fields that the closed rules allow were changed",
        "封闭规则（closed）：仅改动了规则允许的字段",
    ),
    "rules.open": Text(
        "open: fields beyond the closed rules were changed",
        "开放规则（open）：改动了封闭规则以外的字段",
    ),
    "recipe.any": Text(
        "{name}, written for no particular world", "{name}，未限定运行规模"
    ),
    "recipe.for": Text("{name}, written for {world}", "{name}，针对 {world} 编写"),
    "world.text": Text("{world} ({n} rank(s))", "{world}（共 {n} 个 rank）"),
    "repeat.text": Text("{index} of {count}", "第 {index} 次，共 {count} 次"),
    "steady.yes": Text(
        "steady: median step time moved by {drift} between the first and the last third of the "
        "measured steps",
        "稳定：首尾各三分之一计量步的步耗时中位数变化 {drift}",
    ),
    "steady.no": Text(
        "not steady: median step time moved by {drift} between the first and the last third of "
        "the measured steps",
        "不稳定：首尾各三分之一计量步的步耗时中位数变化 {drift}",
    ),
    "steady.unknown": Text(
        "too few steps after the warm-up to tell", "预热后的步数过少，无法判断"
    ),
    # Strategies and batch sizes of the fine-tuning page
    "parallel.technique": Text("Technique", "并行技术"),
    "parallel.implementer": Text("Implemented by", "实施者"),
    "parallel.details": Text("Details", "实施细节"),
    "optimisation.scheme": Text("Scheme", "优化方案"),
    "optimisation.implementer": Text("Implemented by", "实施者"),
    "optimisation.details": Text("Details", "方案细节"),
    "batch.local": Text(
        "local_batchsize, LBS: samples a device takes in one forward pass (micro_batch_size)",
        "local_batchsize，简写为LBS，即单卡一次前向的样本数（micro_batch_size）",
    ),
    "batch.sequence": Text(
        "seq_length, MPE: tokens of a sample", "seq_length，简写为MPE，即一个样本的 token 数"
    ),
    "batch.accumulation": Text(
        "gradient_accumulate_steps, GAS: micro-batches of a step (grad_accum_steps)",
        "gradient_accumulate_steps，简写为GAS，即梯度累加步数（grad_accum_steps）",
    ),
    "batch.global": Text(
        "global_batchsize: LBS x GAS x ranks", "global_batchsize，即 LBS × GAS × rank 数"
    ),
    # Status and verdict
    "status.passed": Text("passed", "通过"),
    "status.target_missed": Text("target missed", "未达目标"),
    "status.failed": Text("failed", "失败"),
    "status.timed_out": Text("timed out", "超时"),
    "status.oom": Text("out of memory", "内存不足"),
    "status.diverged": Text("diverged", "训练发散"),
    "status.interrupted": Text("interrupted", "中断"),
    "verdict.reached": Text(
        "{metric} {value} reached the target {target}", "{metric} {value}，达到目标 {target}"
    ),
    "verdict.missed": Text(
        "{metric} {value} did not reach the target {target}",
        "{metric} {value}，未达到目标 {target}",
    ),
    "verdict.no_target": Text(
        "{metric} {value}; this recipe has no target", "{metric} {value}；该配方未设目标"
    ),
    "verdict.none": Text("no {metric}: {reason}", "无 {metric}：{reason}"),
    "verdict.best": Text(
        "the best any model can score on this data is {best}", "该数据上任何模型的最佳得分为 {best}"
    ),
    # Labels
    "label.form": Text("{label} ({meaning})", "{label}（{meaning}）"),
    "label.self-reported": Text("measured by whoever shows it", "由发布者自行测得"),
    "label.reproduced": Text("measured again by somebody else", "已由他人复现"),
    "label.performance-only": Text(
        "no quality target: about speed only", "未设质量目标，仅反映速度"
    ),
    "label.generated-data": Text("data generated by the case", "数据由用例生成"),
    "label.oversubscribed": Text("more ranks than cores", "rank 数多于核数"),
    "label.recipe-written-for": Text(
        "the recipe was written for another world", "配方针对其他运行规模编写"
    ),
    # General figures: names
    "name.task": Text("task", "任务类别"),
    "name.model": Text("model", "模型"),
    "name.dataset": Text("data set", "数据集"),
    "name.sample": Text("one sample", "样本定义"),
    "name.device": Text("short device name", "硬件设备简称"),
    "name.extra": Text("extra changes", "额外修改项"),
    "name.precision": Text("precision", "数据精度"),
    "name.fix_hp": Text("changed hyper-parameters", "超参修改"),
    "name.e2e_time": Text("end-to-end time", "端到端时间"),
    "name.p_whole": Text("whole throughput", "总吞吐量"),
    "name.p_train": Text("training throughput", "训练吞吐量"),
    "name.p_core": Text("compute throughput", "计算吞吐量"),
    "name.token/p/s": Text("token throughput", "吞吐量"),
    "name.loss": Text("training loss", "训练损失"),
    "name.mem": Text("memory use", "硬件存储使用"),
    "name.MFU": Text("model FLOP utilisation", "计算使用率"),
    "name.quality": Text("quality", "训练结果"),
    "general.data": Text(
        "{train} training and {eval} evaluation samples, {layout}, {origin}, content {content}",
        "训练样本 {train}，评估样本 {eval}，格式 {layout}，{origin}，内容标识 {content}",
    ),
    "origin.generated": Text("generated by the case", "由用例生成"),
    "origin.real": Text("real data", "真实数据"),
    # General figures: definitions
    "def.precision": Text(
        "the precision that was in force: {precisions}", "实际生效的精度：{precisions}"
    ),
    "def.fix_hp": Text(
        "fields that differ from recipe {standards} and that the closed rules allow; / means none",
        "与配方 {standards} 不同且封闭规则允许改动的字段；/ 表示无",
    ),
    "def.e2e_time": Text(
        "launcher start to the last rank's end, in s", "从启动器启动到最后一个 rank 结束，单位为 s"
    ),
    "def.p_whole": Text(
        "samples really trained over training time, evaluation included, slowest rank; samples/s",
        "实际训练样本数除以训练时间（含评估，取最慢的 rank），单位为 samples/s",
    ),
    "def.p_train": Text(
        "the same, evaluation left out of the time; samples/s",
        "同上，时间中不包含评估，单位为 samples/s",
    ),
    "def.p_core": Text(
        "the same, evaluation and waiting for data left out of the time; samples/s",
        "同上，时间中不包含评估和等待数据（p_core≥p_train≥p_whole），单位为 samples/s",
    ),
    "def.seq_length": Text(" (seq_length={lengths})", "（seq_length={lengths}）"),
    "def.token/p/s": Text(
        "tokens without padding, per device and second, evaluation left out",
        "单卡每秒训练的 token 数，不含填充，不含评估时间",
    ),
    "def.loss": Text("mean over the samples of all epochs", "全部轮次内按样本平均"),
    "def.mem": Text("peak used/total, in GiB", "峰值使用量/总量，通常称为“显存”，单位为GiB"),
    "def.MFU": Text(
        "model FLOP/s per device over the dense peak of the precision that ran",
        "单卡模型 FLOP/s 除以实际运行精度的稠密峰值",
    ),
    # The same where ranks are processes that share a host's cores and memory
    "def.host.token/p/s": Text(
        "tokens without padding, per process and second, evaluation left out",
        "每个进程每秒训练的 token 数，不含填充，不含评估时间",
    ),
    "def.host.mem": Text(
        "the processes' peak use/the host's total, in GiB",
        "各进程内存峰值使用量/主机内存总量，单位为GiB",
    ),
    "def.host.MFU": Text(
        "model FLOP/s per process over the dense peak of the precision that ran",
        "每个进程的模型 FLOP/s 除以实际运行精度的稠密峰值",
    ),
    "def.quality": Text("{note}", "{note}"),
    "def.extra": Text(
        "changes beyond the closed rules", "超出封闭规则的改动"
    ),
    # Further figures
    "figure.train_time": Text("training start to end, slowest rank", "训练起止时间，取最慢的 rank"),
    "figure.final_result": Text(
        "all work over all time after the warm-up", "预热之后的总工作量除以总时间"
    ),
    "figure.p_train_sequences": Text(
        "sequences in place of samples in p_train, all devices",
        "p_train 以序列计，全部设备合计",
    ),
    "figure.p_train_tokens": Text(
        "tokens without padding in place of samples in p_train, all devices",
        "p_train 以 token 计（不含填充），全部设备合计",
    ),
    "figure.step_time_p50": Text("median step after the warm-up", "预热后步耗时中位数"),
    "figure.step_time_p90": Text("90th percentile", "第 90 百分位"),
    "figure.step_time_p99": Text("99th percentile", "第 99 百分位"),
    "figure.step_time_mad": Text("median absolute deviation", "中位数绝对偏差"),
    "figure.step_time_cv": Text("sample standard deviation over mean", "样本标准差除以均值"),
    "figure.loss": Text(
        "training loss, mean over the samples of all epochs", "训练损失，全部轮次内按样本平均"
    ),
    "figure.final_loss": Text(
        "training loss, mean over the samples of the last tenth of the steps",
        "训练损失，最后十分之一训练步内按样本平均",
    ),
    "figure.MAMFU": Text(
        "model FLOP/s over the matmul rate measured on this device",
        "模型 FLOP/s 除以本机实测矩阵乘速率",
    ),
    "figure.embedding_bytes_per_device": Text(
        "embedding bytes moved a second a device", "单卡每秒嵌入读写字节数"
    ),
    "figure.exchange_bytes_per_device": Text(
        "bytes sent a second a device", "单卡每秒发送字节数"
    ),
    "figure.copy_bytes_per_device": Text(
        "bytes a second of a memory copy", "内存拷贝每秒字节数"
    ),
    "figure.embedding_bandwidth_share": Text(
        "embedding stage's share of the copy rate", "嵌入阶段达到的拷贝速率占比"
    ),
    "figure.embedding_share": Text("time in embeddings", "嵌入的时间占比"),
    "figure.dense_share": Text("time in dense layers", "稠密层的时间占比"),
    "figure.exchange_share": Text("time waiting for exchanges", "等待交换的时间占比"),
    "figure.input_share": Text("time waiting for input", "等待输入的时间占比"),
    "figure.allocator_peak": Text("peak of the framework's allocator", "框架内存分配器的峰值"),
    "figure.null": Text("not measured: {reason}", "未测得：{reason}"),
    "performance.sequences": Text(
        "p_train is also {sequences} sequences/s and {tokens} tokens/s without padding; {note}",
        "p_train 折合 {sequences} sequences/s、{tokens} tokens/s（不含填充）；{note}",
    ),
    # Counts
    "count.samples": Text("samples trained", "训练样本数"),
    "count.sequences": Text("sequences trained", "训练序列数"),
    "count.tokens": Text("tokens without padding", "token 数（不含填充）"),
    "count.tokens_padded": Text("tokens with padding", "token 数（含填充）"),
    "count.steps": Text("optimizer steps", "优化器步数"),
    "count.micro_batches": Text("micro-batches", "微批次数"),
    "count.epochs": Text("epochs begun", "已开始的轮数"),
    "count.skipped_steps": Text("steps skipped by the loss scaler", "因损失缩放跳过的步数"),
    "count.passes": Text("passes over the data", "折合数据遍数"),
    # Spans
    "spans.caption": Text(
        "{wall} s of rank {rank}, the one that ended last; {named} of it has a name. A span "
        "that comes several times stands once, with its times added up; each bar begins where "
        "the one above it ends.",
        "最后结束的 rank {rank} 的墙钟时间 {wall} s，其中 {named} 已归类。"
        "重复出现的阶段合并为一行，耗时累加；每条从上一条的终点开始。",
    ),
    "spans.of": Text("of compile + warmup + train:", "compile + warmup + train 合计："),
    "spans.parts": Text(
        "Of compile, warm-up and train together: waiting for data, computing, window edges",
        "首步编译、预热与训练合计：等待数据、计算、窗口边缘",
    ),
    "spans.edges": Text("window edges", "窗口边缘"),
    "spans.none": Text("no rank reported a span", "没有 rank 上报耗时"),
    "spans.alt": Text(
        "Bars from launch to end, one a span", "从启动到结束的各阶段耗时条形图"
    ),
    "span.launch": Text("start-up", "启动"),
    "span.init": Text("set-up", "初始化"),
    "span.preflight": Text("matmul rate", "矩阵乘速率"),
    "span.data_build": Text("data ready", "构建数据"),
    "span.model_build": Text("model ready", "构建模型"),
    "span.check": Text("parameter checks", "参数检查"),
    "span.compile": Text("first step", "首步编译"),
    "span.warmup": Text("warm-up", "预热"),
    "span.train": Text("measured steps", "训练"),
    "span.evaluate": Text("evaluation", "评估"),
    "span.checkpoint": Text("saving", "存档"),
    "span.finish": Text("closing", "收尾"),
    "span.unfinished": Text("cut off", "中断前未完成"),
    "span.other": Text("without a name", "其他"),
    "span.data_wait": Text("waiting for data", "等待数据"),
    "span.compute": Text("computing", "计算"),
    # Charts
    "chart.loss": Text("Training loss by step", "训练损失随步数变化"),
    "chart.loss.desc": Text(
        "Loss of {n} steps, from {first} to {last}; dashed lines are evaluations",
        "{n} 步的损失，从 {first} 到 {last}；虚线为评估",
    ),
    "chart.step_time": Text("Step time by step (ms)", "步耗时随步数变化（ms）"),
    "chart.step_time.desc": Text(
        "Time of {n} steps; the first {warmup} are the warm-up and are shaded",
        "{n} 步的耗时；前 {warmup} 步为预热，以底色标出",
    ),
    "chart.step": Text("step", "步数"),
    "chart.log": Text("{title}, logarithmic axis", "{title}，对数坐标"),
    "chart.launches": Text(
        "Each launch against the median: a dot a launch, a bar for the interval or range below",
        "各次运行相对中位数的偏差：每点为一次运行，横条为下表中的区间或范围",
    ),
    "chart.launches.desc": Text(
        "{figures} figures over {launches} launches, as per cent of their medians",
        "{launches} 次运行的 {figures} 项指标，以相对中位数的百分比表示",
    ),
    "chart.launches.axis": Text("difference from the median, %", "相对中位数的偏差（%）"),
    "chart.warmup": Text("warm-up", "预热"),
    "chart.note": Text(
        "The charts show the least and the greatest value of every {stretch} steps; figures are "
        "computed from every step.",
        "曲线取每 {stretch} 步中的最小值和最大值；所有指标均由全部步数计算。",
    ),
    # References
    "reference.other": Text(
        "These rows do not compare with this page's runs of {recipes}: model and data "
        "differ.",
        "以下各行与本页 {recipes} 配方的运行不可比较：模型和数据均不同。",
    ),
    "reference.unlike": Text(
        "This page's runs of {recipes} do not train to the target as these rows did: e2e_time "
        "and quality do not compare.",
        "本页 {recipes} 配方的运行不以达到目标为止，与以下各行不同：e2e_time 与训练结果不可比较。",
    ),
    "reference.audit": Text(
        "Passes are e2e_time x p_whole / {rows} training samples of the data set.",
        "折合遍数 = e2e_time × p_whole / 数据集训练样本数 {rows}。",
    ),
    "reference.differ": Text(
        "The rows trained different amounts of data: their e2e_time columns do not compare.",
        "各行实际训练的数据量不同，其 e2e_time 不可相互比较。",
    ),
    "reference.same": Text(
        "The rows trained the same amount of data.", "各行训练的数据量相同。"
    ),
    "reference.source": Text("Source", "来源"),
    "reference.date": Text("Date", "日期"),
    "reference.evidence": Text("Evidence level", "证据等级"),
    "reference.remark": Text("Remark", "说明"),
    "evidence.A": Text("A: measured, the record can be checked", "A：实测，记录可核查"),
    "evidence.B": Text("B: published with logs or raw data", "B：已公布，附日志或原始数据"),
    "evidence.C": Text("C: published figures alone", "C：仅公布数值"),
    "evidence.unverified": Text("unverified: second-hand", "未核实：转引"),
    # Repeats
    "repeats.counted": Text("{passed} of {all} launches passed", "{all} 次运行中 {passed} 次通过"),
    "repeats.median": Text("{name}, median", "{name}（中位数）"),
    "repeats.left_out": Text(
        "left out of every figure: {runs}", "以下运行不计入任何指标：{runs}"
    ),
    "repeats.is_range": Text(
        "With so few launches, the 95% interval of a median is the range from least to greatest.",
        "运行次数这样少时，中位数的 95% 区间就是从最小到最大的范围。",
    ),
    "trust.label": Text("trust", "可信度"),
    "trust.usable": Text("usable", "可用"),
    "trust.noisy": Text("noisy", "有噪声"),
    "trust.do_not_quote": Text("not to be quoted", "不可引用"),
    "repeats.descriptive": Text(
        "Fewer than five launches: the range is descriptive, nothing can be inferred from it.",
        "运行次数少于五次：范围仅作描述，不能据此推断。",
    ),
    # Cause
    "cause.kind": Text("Kind", "类别"),
    "cause.rank": Text("Rank", "Rank"),
    "cause.place": Text("Place", "位置"),
    "cause.type": Text("Exception", "异常类型"),
    "cause.signal": Text("Signal", "信号"),
    "cause.exit_code": Text("Exit code", "退出码"),
    "cause.message": Text("Message", "信息"),
    "cause.remedy": Text("Way out", "处理建议"),
    "cause.stacks": Text("Stacks of the ranks", "各 rank 调用栈文件"),
    "cause.traceback": Text("End of the traceback", "调用栈末尾"),
    # Footer and terminal
    "foot.suite": Text("Suite", "评测套件"),
    "foot.commit": Text("Commit", "代码提交"),
    "foot.run": Text("Run", "运行编号"),
    "foot.key": Text("Case key", "用例键"),
    "foot.content": Text(
        "Every figure on this page is computed from the record of the run; the record from "
        "these files.",
        "本页所有指标均由运行记录计算得出；运行记录由以下文件计算得出。",
    ),
    "terminal.record": Text("record", "记录"),
    "terminal.labels": Text("labels", "标签"),
    "terminal.open": Text(
        "open: changed beyond the closed rules: {changed}", "open：超出封闭规则的改动：{changed}"
    ),
    "terminal.finding": Text("finding", "疑点"),
    "terminal.note": Text("note", "备注"),
    "sep.colon": Text(": ", "："),
    "sep.comma": Text(", ", "，"),
    "sep.semicolon": Text("; ", "；"),
}  # fmt: skip


def text(key: str, lang: str, **values: object) -> str:
    """Return the text called ``key`` in ``lang``, its places filled with ``values``."""
    assert key in TEXTS, f"no text {key!r}: {nearest(key, TEXTS)}"
    found = TEXTS[key].in_language(lang)
    return found.format(**values) if values else found


def has(key: str) -> bool:
    """Tell whether there is a text called ``key``."""
    return key in TEXTS
